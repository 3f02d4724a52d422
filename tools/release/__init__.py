"""`./dev release`: checks a commit, builds its packages, tries them, and prints what a person does next.

checks.py: version, changelog, state of the clone, RELEASE.md; build.py: source distribution and wheels; contents.py: what is inside
them; installs.py: each in an environment without a compiler; __main__.py: the steps in order.
"""
