"""How the clients of SDKs send under limits, by SDK. ``sdk.py`` imports a module when it is used.

::

    http.py      openai, anthropic, google-genai: by httpx or httpx2
    botocore.py  boto3 and botocore
"""
