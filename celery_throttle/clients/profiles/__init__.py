"""Profiles of vendors, as data. ``docs/reference/vendors.md`` has the facts, with their sources.

::

    profile.py        what a profile holds
    reading.py        what an answer says, by a profile
    fields.py         the header fields of a profile, as quotas
    header_values.py  how answers write numbers, times and lists

    generic.py        headers that many APIs share, those of the IETF's drafts among them
    models.py         language models: OpenAI and those who copy its API, Anthropic, Google
    aws.py            AWS, Bedrock included
    services.py       Stripe, GitHub, Shopify, Slack, Twilio, HubSpot, Salesforce, Discord
"""

from celery_throttle.clients.profiles.aws import AWS
from celery_throttle.clients.profiles.generic import GENERIC
from celery_throttle.clients.profiles.models import (
    ANTHROPIC,
    AZURE_OPENAI,
    DEEPSEEK,
    GOOGLE,
    GROQ,
    MISTRAL,
    OPENAI,
    TOGETHER,
)
from celery_throttle.clients.profiles.services import (
    DISCORD,
    GITHUB,
    HUBSPOT,
    SALESFORCE,
    SHOPIFY,
    SLACK,
    STRIPE,
    TWILIO,
)

__all__ = [
    "ANTHROPIC",
    "AWS",
    "AZURE_OPENAI",
    "DEEPSEEK",
    "DISCORD",
    "GENERIC",
    "GITHUB",
    "GOOGLE",
    "GROQ",
    "HUBSPOT",
    "MISTRAL",
    "OPENAI",
    "SALESFORCE",
    "SHOPIFY",
    "SLACK",
    "STRIPE",
    "TOGETHER",
    "TWILIO",
]
