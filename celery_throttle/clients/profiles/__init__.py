"""Profiles of vendors, as data. The facts are in ``docs/reference/vendors.md``, with their sources.

::

    generic.py   headers that many APIs share, those of the IETF's drafts among them
    models.py    language models: OpenAI and those who copy it, Anthropic, Google
    aws.py       AWS, Bedrock included
    services.py  Stripe, GitHub, Shopify, Slack, Twilio, HubSpot, Salesforce, Discord
"""
