"""The libraries that the benchmarks compare, each as processes that wait to be told what to run.

`fleet` is the side that tells, `process` the side that is told; the other modules each know one library.
"""
