"""`./dev release`: checks a commit, builds its packages, tries them, and prints the next steps for a person.

checks.py: version, changelog, state of the clone, RELEASE.md; build.py: source distribution and wheels; contents.py: the
files inside; installs.py: each in an environment without a compiler; __main__.py: the steps in order.
"""
