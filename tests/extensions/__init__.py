"""Ten extensions as a researcher would write them: files of their own that import only documented names."""
