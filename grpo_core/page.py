"""stub"""


def write_page(folder):
    return folder / "run.html"
