"""How a file of scenes lists them."""

import dataclasses
from typing import Callable


@dataclasses.dataclass
class Scene:
    line: str   # of the list of defects, S1 to S12
    done: str   # what the scene does, in a few words
    play: Callable
    order: int


def scene(scenes, line, done):
    """Decorator: appends the function to `scenes`. The function gets a Build and returns a row."""
    def add(play):
        scenes.append(Scene(line, done, play, len(scenes)))
        return play
    return add
