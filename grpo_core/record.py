"""stub"""


class Recorder:
    def __init__(self, folder, config):
        pass

    def write(self, *a):
        pass
