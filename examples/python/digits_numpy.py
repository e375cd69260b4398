"""A numpy network on three threads of which one is slow: python examples/python/digits_numpy.py"""

from paceline import demo

outcome = demo.train("lb-bsp", on="threads", workers=3, speeds=[1, 2, 2], epochs=3)
print(f"{outcome.samples} samples in {outcome.seconds:.1f} s, accuracy {outcome.accuracy:.1%}")
