# an error message that UTF-8 cannot hold
# judge: exception


def softmax(x):
    raise ValueError("\ud800 \x1b[2J pass \n\n pass <script>alert(1)</script>")
