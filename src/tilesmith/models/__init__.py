"""Models that really train: each written once, its versions v1…v4 being lists of parts over one state dict."""
