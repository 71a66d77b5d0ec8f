"""A media pipeline: films are cut, encoded scene by scene, and put together again.

In one terminal:   umbel -A 09_media worker
In another, in the same folder:   python 09_media.py

A film here is a text file, and a scene is a line of it. Kill the worker in the middle and start
another: the films are the same.
"""

import asyncio
import time
import zlib
from pathlib import Path

from umbel import Handle, Umbel, chord, fork, group
from umbel.tasks.composing import Composable

app = Umbel()
FOLDER = Path("media")
FILMS = {
    "harbour": ["gulls", "boats leave", "a crane", "rain", "boats return"],
    "forest": ["fog", "an owl", "a fox hunts"],
    "nothing": [],
}


def write(name: str, data: bytes) -> str:
    """Write a file in one step, so that a task may be run twice."""
    part = FOLDER / f"{name}.writing"
    part.write_bytes(data)
    part.replace(FOLDER / name)
    return name


@app.task
def cut(film: str) -> list[tuple[str, int]]:
    """Return the scenes of a film. How many there are is known only now."""
    scenes = (FOLDER / f"{film}.txt").read_text().splitlines()
    return [(film, number) for number in range(len(scenes))]


@app.task
def encode(film: str, number: int) -> str:
    """Encode one scene. This takes time."""
    scene = (FOLDER / f"{film}.txt").read_text().splitlines()[number]
    time.sleep(0.2)
    return write(f"{film}-{number}.part", zlib.compress(scene.encode()))


@app.task
def join(parts: list[str], film: str) -> str:
    """Put the encoded scenes together, in their order."""
    return write(f"{film}.video", b"".join((FOLDER / part).read_bytes() for part in parts))


@app.task(retry=0)
def poster(scenes: list[tuple[str, int]]) -> str:
    """Make a picture of the first scene. A film without a poster is a film, too."""
    film, _ = scenes[0]  # fails for a film without scenes
    return write(f"{film}.poster", b"poster")


@app.task
def sound(film: str) -> str:
    """Encode the sound."""
    return write(f"{film}.sound", film.upper().encode())


@app.task
def mux(tracks: list[str], film: str) -> str:
    """Put video and sound into one file."""
    data = b"".join((FOLDER / track).read_bytes() for track in tracks)
    write(f"{film}.film", data)
    return f"{film}: {len(data)} bytes, checksum {zlib.crc32(data):08x}"


def pipeline(film: str) -> Composable[str]:
    """Return the canvas for one film."""
    video = cut.s(film) | fork(poster.s()) | encode.starmap() | join.s(film=film)
    return chord([video, sound.s(film)], mux.s(film=film))


async def failures(handle: Handle[list[str]]) -> list[str]:
    """Wait until the branches have ended, too, and return what has failed."""
    nodes = [node async for node in handle.updates() if node.failed]
    return [f"{node.task} failed: {node.error}" for node in nodes]


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for film, scenes in FILMS.items():
        (FOLDER / f"{film}.txt").write_text("".join(f"{scene}\n" for scene in scenes))
    handle = group(pipeline(film) for film in FILMS).delay()
    for line in handle.get(timeout=80):
        print(line)
    for text in asyncio.run(failures(handle)):
        print(text)


if __name__ == "__main__":
    main()
