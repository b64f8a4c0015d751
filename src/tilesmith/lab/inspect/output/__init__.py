"""Show an inspection.

Files, in reading order:

- `terminal.py`: the text report.
- `json_output.py`: the JSON file.
- `page.py`: the HTML page.
- `page_data.py`: the data that the page's script draws.
- `roofline_chart.py`: the kernel's place on the roofline.
"""
