"""The region file, which the ``landbridge`` program reads: where and as which rank to attach."""
