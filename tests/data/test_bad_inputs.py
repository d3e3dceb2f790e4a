"""A table of bad inputs. Each must end in one line that names the file, row or key; nothing else may be raised.

The readers are called in this process, which makes the table fast; some of the same go through the console script in
test_cli.py. Archives and servers that misbehave are in test_download.py. The table is in the files beside this one.
"""

from test_bad_arrays import NPZ, PREDICT
from test_bad_pictures import FOLDERS, NAMES, PICTURES
from test_bad_public_sets import IDX, PICKLES, TINY
from test_bad_run_files import ABOUT, RUN_FILES, SETTINGS
from test_bad_tables import CSV, PARQUET


def test_the_table_is_long_enough():
    single = [CSV, PARQUET, NPZ, PREDICT, PICTURES, FOLDERS, NAMES, PICKLES, TINY, SETTINGS, ABOUT, RUN_FILES]
    assert sum(map(len, single)) + 2 * len(IDX) >= 200
