#!/usr/bin/env python3
"""The steps of a mosaic, in the manner of Montage: project, diff, fit, background, row, mosaic.

Images are raw: two numbers of four bytes (width, height), then a number of two bytes for each point, all in little endian.
Needs nothing but Python.
"""
import array
import random
import struct
import sys

HEAD = struct.Struct("<II")


def load(path):
    with open(path, "rb") as file:
        width, height = HEAD.unpack(file.read(HEAD.size))
        points = array.array("H")
        points.frombytes(file.read())
    if len(points) != width * height:
        raise SystemExit(f"{path}: {len(points)} points, not {width} x {height}")
    return width, height, points


def store(path, width, height, points):
    with open(path, "wb") as file:
        file.write(HEAD.pack(width, height))
        file.write(points.tobytes())


def edge(path, side):
    """The points along one side of an image; of a file, only what is needed is read."""
    with open(path, "rb") as file:
        width, height = HEAD.unpack(file.read(HEAD.size))
        line = array.array("H")
        if side in "ns":
            file.seek(HEAD.size + (0 if side == "n" else 2 * width * (height - 1)))
            line.frombytes(file.read(2 * width))
            return line
        whole = array.array("H")
        whole.frombytes(file.read())
        return whole[0::width] if side == "w" else whole[width - 1 :: width]


def make(path, size, seed):
    """A raw tile: a sky with a level of its own."""
    size, source = int(size), random.Random(seed)
    level = source.randrange(1_000, 2_000)
    noise = source.randbytes(2 * size * size)
    points = array.array("H")
    points.frombytes(noise)
    store(path, size, size, array.array("H", (level + (point >> 10) for point in points)))


def project(raw, out):
    """Turns a tile by half a turn and back, line by line, as a projection touches every point."""
    width, height, points = load(raw)
    lines = [points[row * width : (row + 1) * width] for row in range(height)]
    for line in lines:
        line.reverse()
    turned = array.array("H")
    for line in lines:
        line.reverse()
        turned.extend(line)
    store(out, width, height, turned)


def diff(first, second, sides, out):
    """How much brighter the second tile is than the first along the side that they share."""
    near, far = edge(first, sides[0]), edge(second, sides[1])
    with open(out, "w") as file:
        file.write(f"{(sum(far) - sum(near)) / len(near)}\n")


def fit(out, *diffs):
    """One level for each tile, such that the differences between neighbours vanish as far as they can."""
    levels, pairs = {}, []
    for path in diffs:
        name = path.rsplit("/", 1)[-1].removesuffix(".diff")
        first, second = name.split("--")
        with open(path) as file:
            pairs.append((first, second, float(file.read())))
        levels.setdefault(first, 0.0)
        levels.setdefault(second, 0.0)
    for _ in range(50):
        for first, second, difference in pairs:
            off = (levels[second] - levels[first] - difference) / 2
            levels[first] += off
            levels[second] -= off
    with open(out, "w") as file:
        file.writelines(f"{name} {level}\n" for name, level in sorted(levels.items()))


def background(tile, levels, name, out):
    """The tile without its own level."""
    width, height, points = load(tile)
    with open(levels) as file:
        level = dict(line.split() for line in file)[name]
    shift = round(float(level))
    store(out, width, height, array.array("H", (max(0, point - shift) for point in points)))


def row(out, *tiles):
    """Tiles side by side, an eighth as wide and high."""
    shrunk = []
    for path in tiles:
        width, height, points = load(path)
        shrunk.append([points[at * width : (at + 1) * width : 8] for at in range(0, height, 8)])
    lines = array.array("H")
    for parts in zip(*shrunk):
        for part in parts:
            lines.extend(part)
    store(out, sum(len(tile[0]) for tile in shrunk), len(shrunk[0]), lines)


def mosaic(out, *rows):
    """Rows one below the other."""
    points, width, height = array.array("H"), 0, 0
    for path in rows:
        width, more, lines = load(path)
        height += more
        points.extend(lines)
    store(out, width, height, points)


STEPS = {step.__name__: step for step in (make, project, diff, fit, background, row, mosaic)}

if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in STEPS:
        raise SystemExit(f"usage: mosaic.py {'|'.join(STEPS)} ARGUMENT...")
    STEPS[sys.argv[1]](*sys.argv[2:])
