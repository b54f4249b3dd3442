"""Small programming requests: write, complete, edit, explain."""

from __future__ import annotations

from random import Random

_FUNCTIONS = (
    ("adds two numbers", "add", "a, b"),
    ("reverses a string", "reverse", "text"),
    ("checks whether a number is prime", "is_prime", "n"),
    ("counts the words in a text", "count_words", "text"),
    ("returns the largest item of a list", "largest", "items"),
    ("computes the factorial of a number", "factorial", "n"),
    ("removes duplicates from a list", "unique", "items"),
    ("converts celsius to fahrenheit", "to_fahrenheit", "celsius"),
    ("finds the average of a list of numbers", "average", "numbers"),
    ("checks whether a word is a palindrome", "is_palindrome", "word"),
    ("merges two sorted lists", "merge", "left, right"),
    ("reads a file and returns its lines", "read_lines", "path"),
    ("sums the digits of a number", "digit_sum", "n"),
    ("returns the n-th Fibonacci number", "fibonacci", "n"),
    ("sorts a list of dictionaries by a key", "sort_by", "rows, key"),
    ("groups words by their first letter", "group_words", "words"),
    ("flattens a nested list", "flatten", "items"),
    ("validates an email address", "is_email", "address"),
    ("computes the greatest common divisor", "gcd", "a, b"),
    ("writes a dictionary to a JSON file", "save", "data, path"),
    ("finds the second largest number", "second_largest", "numbers"),
    ("splits a list into chunks", "chunks", "items, size"),
    ("counts how often each letter occurs", "letter_counts", "text"),
    ("calculates the area of a circle", "circle_area", "radius"),
    ("downloads a web page", "download", "url"),
    ("binary searches a sorted list", "search", "items, wanted"),
)

_BODIES = (
    "def total(items):\n    result = 0\n    for item in items:\n        result = result + item.price\n"
    "    return result\n",
    "class Account:\n    def __init__(self, owner, balance=0):\n        self.owner = owner\n"
    "        self.balance = balance\n\n    def deposit(self, amount):\n        self.balance += amount\n",
    "def greet(name):\n    print('Hello ' + name)\n    print('Welcome to the shop')\n",
    "def load(path):\n    f = open(path)\n    data = f.read()\n    f.close()\n    return data\n",
    "for i in range(len(names)):\n    if names[i] != '':\n        print(i, names[i])\n",
    "def find(rows, key):\n    for row in rows:\n        if row['id'] == key:\n            return row\n"
    "    return None\n",
    "SELECT name, city FROM customers WHERE age > 30 ORDER BY name;\n",
    "function sum(list) {\n  let total = 0;\n  for (const x of list) {\n    total += x;\n  }\n  return total;\n}\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n"
    "        self.items.append(item)\n\n    def pop(self):\n        return self.items.pop()\n",
)

_EDITS = (
    "Add type hints to this code and show the whole result:",
    "Add a docstring to this code and show the whole result:",
    "Rename the variables to be clearer. Show the whole code:",
    "Add error handling to this code:",
    "Repeat this code exactly:",
    "Explain this code:",
    "Add a test for this code:",
    "Rewrite this code so that it is shorter:",
)

_LANGUAGES = ("Python", "Python", "Python", "JavaScript", "Java", "Rust")


def code_task(rng: Random) -> str:
    """One request in words."""
    what, name, arguments = rng.choice(_FUNCTIONS)
    how = rng.random()
    if how < 0.35:
        ending = rng.choice(("", " Show only the code.", " Explain it.", " Include an example."))
        return f"Write a {rng.choice(_LANGUAGES)} function that {what}.{ending}"
    if how < 0.6:
        return f"Complete this Python function, which {what}:\n\n```python\ndef {name}({arguments}):\n"
    return f"{rng.choice(_EDITS)}\n\n```\n{rng.choice(_BODIES)}```"
