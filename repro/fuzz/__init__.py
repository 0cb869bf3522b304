"""Random sequences of scheduler calls ("stories"): generated and shrunk by Hypothesis, saved, and replayed."""
