"""The actions of the page.

::

    pages.py       the pages of all actions: form, preview, and the change itself
    action.py      what an action is; limits.py, removal.py and fan_outs.py list them
    forms.py       fields of actions, and the values of their texts
"""
