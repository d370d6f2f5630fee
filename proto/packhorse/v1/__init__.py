"""Generated protocol stubs of packhorse.v1; made by proto/generate.py."""
