"""An archive on a real S3 server, which is killed while it is written, says the same as one on a disk."""

from pathlib import Path

import pandas as pd
import pytest

from rollstream.archive.appending import Appender
from rollstream.archive.archive import Archive
from rollstream.archive.reading import joined
from rollstream.schemas.errors import WeightStoreError
from tests.harness.archiving import IDENTITY, passes, writing
from tests.harness.s3_fixtures import BUCKET, S3Server, s3

__all__ = ["s3"]


def test_an_archive_goes_on_in_a_bucket_whose_server_was_away(s3: S3Server, tmp_path: Path) -> None:
    url, storage = f"s3://{BUCKET}/runs/archive", s3.storage(tmp_path / "cache", outage_seconds=1)
    with Archive.writing(url, IDENTITY, storage) as archive:
        passes(Appender(archive), range(4))
        s3.kill()
        with pytest.raises(WeightStoreError, match=url):
            passes(Appender(archive), range(4, 8))
    s3.start()
    with Archive.writing(url, IDENTITY, storage) as archive:
        assert archive.ends("rollouts", "scored") == {1: 8}
        passes(Appender(archive), range(4, 8))
    with writing(tmp_path / "archive") as archive:
        passes(Appender(archive), range(8))
    for found, expected in zip(joined(url, storage=storage), joined(tmp_path / "archive"), strict=True):
        pd.testing.assert_frame_equal(found.astype(str), expected.astype(str))
