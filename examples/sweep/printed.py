"""A linear model in plain Python, as the trial of a study: it prints its loss, without the library."""

import argparse
import random


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--batch-size", type=int, default=8)
    options = parser.parse_args()
    draw = random.Random(0)
    data = [(x, 3 * x - 1 + draw.gauss(0, 0.1)) for x in (draw.uniform(-1, 1) for _ in range(512))]
    train, held_out = data[:400], data[400:]
    slope = offset = 0.0
    for epoch in range(9):
        draw.shuffle(train)
        for begin in range(0, len(train), options.batch_size):
            batch = train[begin : begin + options.batch_size]
            errors = [(slope * x + offset - y, x) for x, y in batch]
            slope -= options.lr * 2 * sum(error * x for error, x in errors) / len(batch)
            offset -= options.lr * 2 * sum(error for error, _ in errors) / len(batch)
        loss = sum((slope * x + offset - y) ** 2 for x, y in held_out) / len(held_out)
        print(f"epoch {epoch}: val_loss {loss:.6f}", flush=True)


if __name__ == "__main__":
    main()
