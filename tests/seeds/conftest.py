"""Which tests need the pages of documentation: in a clone without them the others stand for these.

``test_own_programs.py`` uses every documented name wherever it runs.
"""

from tests.other_peoples import pages

collect_ignore = [] if pages() else ["test_examples.py", "test_reference.py"]
