"""What these tests have measured, in the summary: deadlines are for machines that may be slow, and so say little."""


def pytest_terminal_summary(terminalreporter):
    """All figures that tests have recorded."""
    found = {}
    for report in terminalreporter.stats.get("passed", []):
        for name, seconds in report.user_properties:
            found.setdefault(name, []).append(seconds)
    for name, each in found.items():
        median, worst = sorted(each)[len(each) // 2], max(each)
        terminalreporter.write_line(f"{name}: median {median:.2f}, worst {worst:.2f} of {len(each)}")
        terminalreporter.write_line(" ".join(f"{seconds:.2f}" for seconds in each))
