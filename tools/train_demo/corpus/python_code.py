"""Small Python functions: a hand-written library, filter-map-reduce combinations, and the standard library's own."""

from __future__ import annotations

import ast
import inspect
import sysconfig
import textwrap
from dataclasses import dataclass
from pathlib import Path

from .base import Draw, Exchange


@dataclass(frozen=True)
class Function:
    """A function that can be asked for: `does` are wordings after "a function that"; bodies are alternatives."""

    names: tuple[str, ...]
    params: str
    hints: str
    does: tuple[str, ...]
    bodies: tuple[str, ...]
    note: str


def _f(names: str, params: str, hints: str, does: str, note: str, *bodies: str) -> Function:
    return Function(tuple(names.split()), params, hints, tuple(does.split("|")), bodies, note)


LIBRARY = [
    _f("reverse_list reversed_list", "items", "items: list -> list", "reverses a list|returns a list in reverse order|turns a list around", "The slice `[::-1]` walks over the list backwards.", "return items[::-1]", "return list(reversed(items))"),
    _f("reverse_string reverse", "text", "text: str -> str", "reverses a string|returns a string backwards|reverses the letters of a text", "The slice `[::-1]` walks over the string backwards.", "return text[::-1]"),
    _f("is_palindrome palindrome", "text", "text: str -> bool", "checks if a string is a palindrome|tells whether a text reads the same backwards|tests for a palindrome", "A palindrome equals its own reverse.", "return text == text[::-1]", "text = text.lower()\nreturn text == text[::-1]"),
    _f("factorial", "n", "n: int -> int", "computes the factorial of a number|returns n factorial|calculates the factorial of n", "The factorial of n is the product of all numbers from 1 to n.", "result = 1\nfor i in range(2, n + 1):\n    result *= i\nreturn result", "if n <= 1:\n    return 1\nreturn n * factorial(n - 1)"),
    _f("fibonacci fib", "n", "n: int -> int", "returns the n-th Fibonacci number|computes the n-th Fibonacci number|calculates Fibonacci numbers", "Each number is the sum of the two before it.", "a, b = 0, 1\nfor _ in range(n):\n    a, b = b, a + b\nreturn a"),
    _f("fibonacci_list first_fibonacci", "n", "n: int -> list[int]", "returns the first n Fibonacci numbers|makes a list of n Fibonacci numbers", "The loop appends one number at a time.", "numbers = []\na, b = 0, 1\nfor _ in range(n):\n    numbers.append(a)\n    a, b = b, a + b\nreturn numbers"),
    _f("is_prime prime", "n", "n: int -> bool", "checks if a number is prime|tells whether a number is a prime|tests a number for being prime", "It is enough to try divisors up to the square root.", "if n < 2:\n    return False\nfor i in range(2, int(n ** 0.5) + 1):\n    if n % i == 0:\n        return False\nreturn True"),
    _f("primes_up_to list_primes", "n", "n: int -> list[int]", "returns all primes up to n|lists the prime numbers up to n", "A number is prime if no smaller prime divides it.", "primes = []\nfor i in range(2, n + 1):\n    if all(i % p != 0 for p in primes):\n        primes.append(i)\nreturn primes"),
    _f("is_even even", "n", "n: int -> bool", "checks if a number is even|tells whether a number is even", "An even number leaves no remainder when divided by 2.", "return n % 2 == 0"),
    _f("is_odd odd", "n", "n: int -> bool", "checks if a number is odd|tells whether a number is odd", "An odd number leaves the remainder 1 when divided by 2.", "return n % 2 == 1"),
    _f("add add_numbers", "a, b", "a: float, b: float -> float", "adds two numbers|returns the sum of two numbers", "It returns the sum of both arguments.", "return a + b"),
    _f("subtract difference", "a, b", "a: float, b: float -> float", "subtracts two numbers|returns the difference of two numbers", "It returns the first argument minus the second.", "return a - b"),
    _f("multiply product", "a, b", "a: float, b: float -> float", "multiplies two numbers|returns the product of two numbers", "It returns the product of both arguments.", "return a * b"),
    _f("divide safe_divide", "a, b", "a: float, b: float -> float", "divides two numbers|divides a by b and handles zero", "It returns None when the divisor is zero.", "if b == 0:\n    return None\nreturn a / b"),
    _f("maximum largest find_max", "numbers", "numbers: list[int] -> int", "returns the largest number in a list|finds the maximum of a list|finds the biggest number in a list", "The loop keeps the best value so far.", "return max(numbers)", "best = numbers[0]\nfor n in numbers:\n    if n > best:\n        best = n\nreturn best"),
    _f("minimum smallest find_min", "numbers", "numbers: list[int] -> int", "returns the smallest number in a list|finds the minimum of a list", "The smallest value wins.", "return min(numbers)", "best = numbers[0]\nfor n in numbers:\n    if n < best:\n        best = n\nreturn best"),
    _f("sum_list total sum_numbers", "numbers", "numbers: list[int] -> int", "returns the sum of a list|adds all numbers in a list|sums up a list of numbers", "The numbers are added one after the other.", "return sum(numbers)", "total = 0\nfor n in numbers:\n    total += n\nreturn total"),
    _f("product_list multiply_all", "numbers", "numbers: list[int] -> int", "returns the product of a list|multiplies all numbers in a list", "It starts at 1 and multiplies with each number.", "result = 1\nfor n in numbers:\n    result *= n\nreturn result"),
    _f("average mean", "numbers", "numbers: list[float] -> float", "returns the average of a list|computes the mean of a list of numbers|calculates the average", "The average is the sum divided by the count.", "return sum(numbers) / len(numbers)", "if not numbers:\n    return 0\nreturn sum(numbers) / len(numbers)"),
    _f("median", "numbers", "numbers: list[float] -> float", "returns the median of a list|computes the median", "The median is the middle of the sorted list.", "numbers = sorted(numbers)\nmiddle = len(numbers) // 2\nif len(numbers) % 2 == 1:\n    return numbers[middle]\nreturn (numbers[middle - 1] + numbers[middle]) / 2"),
    _f("count_vowels vowels", "text", "text: str -> int", "counts the vowels in a string|returns the number of vowels in a text|counts vowels", "Each letter that is in `aeiou` is counted.", 'return sum(1 for c in text.lower() if c in "aeiou")', 'count = 0\nfor c in text.lower():\n    if c in "aeiou":\n        count += 1\nreturn count'),
    _f("count_words word_count", "text", "text: str -> int", "counts the words in a string|returns the number of words in a text", "`split` cuts the text at white space.", "return len(text.split())"),
    _f("count_letters letter_counts", "text", "text: str -> dict[str, int]", "counts how often each letter occurs|counts the letters of a string|returns a dictionary of letter counts", "The dictionary holds one count for each letter.", "counts = {}\nfor c in text:\n    counts[c] = counts.get(c, 0) + 1\nreturn counts"),
    _f("word_frequencies count_each_word", "text", "text: str -> dict[str, int]", "counts how often each word occurs|returns the frequency of each word in a text", "The dictionary holds one count for each word.", "counts = {}\nfor word in text.split():\n    counts[word] = counts.get(word, 0) + 1\nreturn counts"),
    _f("count_item count_value", "items, value", "items: list, value: object -> int", "counts how often a value is in a list|counts a value in a list", "Every item that equals the value is counted.", "return items.count(value)", "count = 0\nfor item in items:\n    if item == value:\n        count += 1\nreturn count"),
    _f("unique remove_duplicates", "items", "items: list -> list", "removes duplicates from a list|returns the unique items of a list|drops repeated items from a list", "The order of the first occurrences is kept.", "result = []\nfor item in items:\n    if item not in result:\n        result.append(item)\nreturn result", "return list(dict.fromkeys(items))"),
    _f("has_duplicates contains_duplicates", "items", "items: list -> bool", "checks if a list has duplicates|tells whether an item occurs twice in a list", "A set drops duplicates, so it would be shorter.", "return len(set(items)) != len(items)"),
    _f("flatten flatten_list", "lists", "lists: list[list] -> list", "flattens a list of lists|joins a list of lists into one list|flattens a nested list", "The inner loop takes the items out of each list.", "return [item for part in lists for item in part]", "result = []\nfor part in lists:\n    result.extend(part)\nreturn result"),
    _f("gcd greatest_common_divisor", "a, b", "a: int, b: int -> int", "computes the greatest common divisor|returns the greatest common divisor of two numbers|finds the gcd of two numbers", "This is the algorithm of Euclid.", "while b:\n    a, b = b, a % b\nreturn a"),
    _f("lcm least_common_multiple", "a, b", "a: int, b: int -> int", "computes the least common multiple|returns the least common multiple of two numbers", "The product is divided by the greatest common divisor.", "x, y = a, b\nwhile y:\n    x, y = y, x % y\nreturn a * b // x"),
    _f("power raise_to", "base, exponent", "base: int, exponent: int -> int", "raises a number to a power|computes a power without the operator", "The base is multiplied again and again.", "result = 1\nfor _ in range(exponent):\n    result *= base\nreturn result"),
    _f("square", "n", "n: int -> int", "squares a number|returns the square of a number", "A square is the number times itself.", "return n * n"),
    _f("cube", "n", "n: int -> int", "returns the cube of a number|cubes a number", "A cube is the number multiplied three times.", "return n * n * n"),
    _f("absolute absolute_value", "n", "n: float -> float", "returns the absolute value of a number|removes the sign of a number", "A negative number is turned around.", "if n < 0:\n    return -n\nreturn n"),
    _f("sign", "n", "n: float -> int", "returns the sign of a number|tells whether a number is positive or negative", "It returns 1, 0 or -1.", "if n > 0:\n    return 1\nif n < 0:\n    return -1\nreturn 0"),
    _f("clamp limit", "value, low, high", "value: float, low: float, high: float -> float", "clamps a value between two limits|limits a number to a range", "The value never leaves the range.", "return max(low, min(value, high))"),
    _f("swap", "a, b", "a: object, b: object -> tuple", "swaps two values|returns two values in swapped order", "A tuple can be returned in any order.", "return b, a"),
    _f("digit_sum sum_of_digits", "n", "n: int -> int", "returns the sum of the digits of a number|adds the digits of a number", "Each character of the number is turned back into a digit.", "return sum(int(d) for d in str(n))", "total = 0\nwhile n > 0:\n    total += n % 10\n    n //= 10\nreturn total"),
    _f("count_digits number_of_digits", "n", "n: int -> int", "counts the digits of a number|returns how many digits a number has", "The number is turned into text first.", "return len(str(abs(n)))"),
    _f("reverse_number", "n", "n: int -> int", "reverses the digits of a number|turns a number around", "The digits are reversed as text.", "return int(str(n)[::-1])"),
    _f("to_binary binary", "n", "n: int -> str", "converts a number to binary|returns the binary form of a number", "`bin` puts `0b` in front, which is cut off.", "return bin(n)[2:]", 'if n == 0:\n    return "0"\ndigits = ""\nwhile n > 0:\n    digits = str(n % 2) + digits\n    n //= 2\nreturn digits'),
    _f("from_binary binary_to_int", "text", "text: str -> int", "converts a binary string to a number|reads a binary number", "`int` accepts the base as its second argument.", "return int(text, 2)"),
    _f("celsius_to_fahrenheit to_fahrenheit", "celsius", "celsius: float -> float", "converts Celsius to Fahrenheit|turns degrees Celsius into Fahrenheit", "Multiply by 9/5 and add 32.", "return celsius * 9 / 5 + 32"),
    _f("fahrenheit_to_celsius to_celsius", "fahrenheit", "fahrenheit: float -> float", "converts Fahrenheit to Celsius|turns degrees Fahrenheit into Celsius", "Subtract 32 and multiply by 5/9.", "return (fahrenheit - 32) * 5 / 9"),
    _f("km_to_miles", "km", "km: float -> float", "converts kilometers to miles|turns kilometers into miles", "One mile is about 1.609 kilometers.", "return km / 1.609344"),
    _f("seconds_to_minutes split_seconds", "seconds", "seconds: int -> tuple[int, int]", "converts seconds to minutes and seconds|splits seconds into minutes and seconds", "`divmod` returns the quotient and the remainder.", "return divmod(seconds, 60)"),
    _f("is_leap_year leap_year", "year", "year: int -> bool", "checks if a year is a leap year|tells whether a year has 366 days", "Every fourth year is one, but not every full century.", "return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)"),
    _f("capitalize_words title_case", "text", "text: str -> str", "capitalizes each word of a string|makes the first letter of each word a capital", "Each word is changed on its own and joined again.", 'return " ".join(word.capitalize() for word in text.split())'),
    _f("to_upper shout", "text", "text: str -> str", "converts a string to upper case|makes a text upper case", "`upper` changes all letters.", "return text.upper()"),
    _f("to_lower lower_case", "text", "text: str -> str", "converts a string to lower case|makes a text lower case", "`lower` changes all letters.", "return text.lower()"),
    _f("remove_spaces strip_spaces", "text", "text: str -> str", "removes all spaces from a string|deletes the spaces of a text", "Each space is replaced by nothing.", 'return text.replace(" ", "")'),
    _f("remove_vowels drop_vowels", "text", "text: str -> str", "removes the vowels from a string|deletes all vowels of a text", "Only letters that are not vowels are kept.", 'return "".join(c for c in text if c.lower() not in "aeiou")'),
    _f("remove_punctuation", "text", "text: str -> str", "removes punctuation from a string|keeps only letters, digits and spaces", "Only letters, digits and spaces are kept.", 'return "".join(c for c in text if c.isalnum() or c == " ")'),
    _f("longest_word find_longest", "words", "words: list[str] -> str", "returns the longest word in a list|finds the longest string in a list", "`max` compares the words by their length.", "return max(words, key=len)", 'longest = ""\nfor word in words:\n    if len(word) > len(longest):\n        longest = word\nreturn longest'),
    _f("shortest_word find_shortest", "words", "words: list[str] -> str", "returns the shortest word in a list|finds the shortest string in a list", "`min` compares the words by their length.", "return min(words, key=len)"),
    _f("sort_by_length order_by_length", "words", "words: list[str] -> list[str]", "sorts words by length|sorts a list of strings by length", "The key of the sort is the length.", "return sorted(words, key=len)"),
    _f("sort_numbers sort_list", "numbers", "numbers: list[int] -> list[int]", "sorts a list of numbers|sorts a list in ascending order", "`sorted` returns a new list.", "return sorted(numbers)"),
    _f("sort_descending", "numbers", "numbers: list[int] -> list[int]", "sorts a list in descending order|sorts numbers from large to small", "`reverse=True` turns the order around.", "return sorted(numbers, reverse=True)"),
    _f("bubble_sort", "numbers", "numbers: list[int] -> list[int]", "sorts a list with bubble sort|implements bubble sort", "Neighbors in the wrong order are swapped until none are left.", "numbers = list(numbers)\nfor i in range(len(numbers)):\n    for j in range(len(numbers) - 1 - i):\n        if numbers[j] > numbers[j + 1]:\n            numbers[j], numbers[j + 1] = numbers[j + 1], numbers[j]\nreturn numbers"),
    _f("insertion_sort", "numbers", "numbers: list[int] -> list[int]", "sorts a list with insertion sort|implements insertion sort", "Each number is moved left to its place.", "numbers = list(numbers)\nfor i in range(1, len(numbers)):\n    j = i\n    while j > 0 and numbers[j - 1] > numbers[j]:\n        numbers[j - 1], numbers[j] = numbers[j], numbers[j - 1]\n        j -= 1\nreturn numbers"),
    _f("quick_sort quicksort", "numbers", "numbers: list[int] -> list[int]", "sorts a list with quicksort|implements quicksort", "The list is split at the first number, and both parts are sorted.", "if len(numbers) <= 1:\n    return numbers\nfirst, rest = numbers[0], numbers[1:]\nsmall = [n for n in rest if n < first]\nlarge = [n for n in rest if n >= first]\nreturn quick_sort(small) + [first] + quick_sort(large)"),
    _f("merge_sorted merge_lists", "a, b", "a: list[int], b: list[int] -> list[int]", "merges two sorted lists|joins two sorted lists into one", "The smaller head is taken each time.", "result = []\ni = j = 0\nwhile i < len(a) and j < len(b):\n    if a[i] <= b[j]:\n        result.append(a[i])\n        i += 1\n    else:\n        result.append(b[j])\n        j += 1\nreturn result + a[i:] + b[j:]"),
    _f("binary_search", "items, target", "items: list[int], target: int -> int", "finds a value in a sorted list|implements binary search|searches a sorted list", "The range is halved in each step.", "low, high = 0, len(items) - 1\nwhile low <= high:\n    middle = (low + high) // 2\n    if items[middle] == target:\n        return middle\n    if items[middle] < target:\n        low = middle + 1\n    else:\n        high = middle - 1\nreturn -1"),
    _f("linear_search find_index", "items, target", "items: list, target: object -> int", "returns the index of a value in a list|finds the position of an item|implements linear search", "It returns -1 if the value is not there.", "for i, item in enumerate(items):\n    if item == target:\n        return i\nreturn -1"),
    _f("contains is_in_list", "items, value", "items: list, value: object -> bool", "checks if a list contains a value|tells whether a value is in a list", "The `in` operator does the search.", "return value in items"),
    _f("is_sorted check_sorted", "items", "items: list -> bool", "checks if a list is sorted|tells whether a list is in ascending order", "Each item must not be larger than the next.", "return all(a <= b for a, b in zip(items, items[1:]))", "for i in range(len(items) - 1):\n    if items[i] > items[i + 1]:\n        return False\nreturn True"),
    _f("second_largest", "numbers", "numbers: list[int] -> int", "returns the second largest number in a list|finds the second largest number", "Duplicates are removed before sorting.", "return sorted(set(numbers))[-2]"),
    _f("common_items intersection", "a, b", "a: list, b: list -> list", "returns the items that two lists share|finds the common items of two lists", "Each item of the first list is looked up in the second.", "return [x for x in a if x in b]"),
    _f("merge_dicts combine_dicts", "a, b", "a: dict, b: dict -> dict", "merges two dictionaries|combines two dictionaries", "Values of the second dictionary win.", "return {**a, **b}", "result = dict(a)\nresult.update(b)\nreturn result"),
    _f("invert_dict swap_keys", "mapping", "mapping: dict -> dict", "swaps the keys and values of a dictionary|inverts a dictionary", "Each value becomes a key.", "return {value: key for key, value in mapping.items()}"),
    _f("sort_by_value", "mapping", "mapping: dict -> list", "sorts a dictionary by its values|returns the items of a dictionary sorted by value", "The key of the sort is the second part of each item.", "return sorted(mapping.items(), key=lambda item: item[1])"),
    _f("group_by_length", "words", "words: list[str] -> dict[int, list[str]]", "groups words by their length|sorts words into groups of equal length", "`setdefault` makes a new list for a new length.", "groups = {}\nfor word in words:\n    groups.setdefault(len(word), []).append(word)\nreturn groups"),
    _f("chunk split_list", "items, size", "items: list, size: int -> list[list]", "splits a list into chunks|cuts a list into parts of a given size", "The range moves on by the size of a chunk.", "return [items[i:i + size] for i in range(0, len(items), size)]"),
    _f("rotate rotate_list", "items, k", "items: list, k: int -> list", "rotates a list by k places|moves the first k items of a list to the end", "The list is cut once and joined the other way.", "if not items:\n    return items\nk = k % len(items)\nreturn items[k:] + items[:k]"),
    _f("first_item head", "items", "items: list -> object", "returns the first item of a list|gets the first element", "It returns None for an empty list.", "if not items:\n    return None\nreturn items[0]"),
    _f("last_item tail", "items", "items: list -> object", "returns the last item of a list|gets the last element", "The index -1 counts from the end.", "if not items:\n    return None\nreturn items[-1]"),
    _f("zip_lists pair_up", "a, b", "a: list, b: list -> list[tuple]", "pairs up the items of two lists|combines two lists into pairs", "`zip` stops at the end of the shorter list.", "return list(zip(a, b))"),
    _f("range_list numbers_between", "start, end", "start: int, end: int -> list[int]", "returns all numbers between two limits|makes a list of numbers from start to end", "`range` leaves out the end, so 1 is added.", "return list(range(start, end + 1))"),
    _f("sum_to_n triangular", "n", "n: int -> int", "adds all numbers from 1 to n|returns the sum of the numbers from 1 to n", "There is a formula, so no loop is needed.", "return n * (n + 1) // 2", "total = 0\nfor i in range(1, n + 1):\n    total += i\nreturn total"),
    _f("multiplication_table times_table", "n", "n: int -> list[int]", "returns the multiplication table of a number|makes the times table of n", "Each entry is n times a number from 1 to 10.", "return [n * i for i in range(1, 11)]"),
    _f("fizz_buzz fizzbuzz", "n", "n: int -> list[str]", "plays FizzBuzz up to n|implements FizzBuzz|solves FizzBuzz", "Multiples of 15 must be checked first.", 'result = []\nfor i in range(1, n + 1):\n    if i % 15 == 0:\n        result.append("FizzBuzz")\n    elif i % 3 == 0:\n        result.append("Fizz")\n    elif i % 5 == 0:\n        result.append("Buzz")\n    else:\n        result.append(str(i))\nreturn result'),
    _f("divisors factors", "n", "n: int -> list[int]", "returns all divisors of a number|lists the factors of a number", "Every number up to n is tried.", "return [i for i in range(1, n + 1) if n % i == 0]"),
    _f("is_perfect perfect_number", "n", "n: int -> bool", "checks if a number is perfect|tells whether a number equals the sum of its divisors", "The number itself does not count as a divisor.", "return n > 1 and sum(i for i in range(1, n) if n % i == 0) == n"),
    _f("collatz collatz_steps", "n", "n: int -> int", "counts the Collatz steps of a number|returns the length of a Collatz sequence", "Even numbers are halved, odd ones become 3n + 1.", "steps = 0\nwhile n != 1:\n    if n % 2 == 0:\n        n //= 2\n    else:\n        n = 3 * n + 1\n    steps += 1\nreturn steps"),
    _f("are_anagrams is_anagram", "a, b", "a: str, b: str -> bool", "checks if two strings are anagrams|tells whether two words have the same letters", "Anagrams have the same sorted letters.", "return sorted(a) == sorted(b)"),
    _f("starts_with has_prefix", "text, prefix", "text: str, prefix: str -> bool", "checks if a string starts with a prefix|tests the start of a string", "Strings have a method for this.", "return text.startswith(prefix)"),
    _f("repeat_string repeat", "text, n", "text: str, n: int -> str", "repeats a string n times|returns a string repeated n times", "A string can be multiplied by a number.", "return text * n"),
    _f("join_words join", "words", "words: list[str] -> str", "joins words with spaces|joins a list of strings into one string", "`join` puts a space between the words.", 'return " ".join(words)'),
    _f("split_words words", "text", "text: str -> list[str]", "splits a string into words|returns the words of a text as a list", "`split` cuts at white space.", "return text.split()"),
    _f("caesar caesar_cipher", "text, shift", "text: str, shift: int -> str", "encodes a text with the Caesar cipher|shifts each letter of a text", "Only small letters are moved; the rest stays.", 'result = ""\nfor c in text:\n    if "a" <= c <= "z":\n        c = chr((ord(c) - 97 + shift) % 26 + 97)\n    result += c\nreturn result'),
    _f("area_of_circle circle_area", "radius", "radius: float -> float", "computes the area of a circle|returns the area of a circle", "The area is pi times the radius squared.", "return 3.141592653589793 * radius ** 2"),
    _f("area_of_rectangle rectangle_area", "width, height", "width: float, height: float -> float", "computes the area of a rectangle|returns the area of a rectangle", "The area is the width times the height.", "return width * height"),
    _f("area_of_triangle triangle_area", "base, height", "base: float, height: float -> float", "computes the area of a triangle|returns the area of a triangle", "The area is half of the base times the height.", "return base * height / 2"),
    _f("perimeter rectangle_perimeter", "width, height", "width: float, height: float -> float", "computes the perimeter of a rectangle|returns the perimeter of a rectangle", "Both sides count twice.", "return 2 * (width + height)"),
    _f("hypotenuse", "a, b", "a: float, b: float -> float", "computes the hypotenuse of a right triangle|returns the longest side of a right triangle", "This is the theorem of Pythagoras.", "return (a * a + b * b) ** 0.5"),
    _f("distance", "x1, y1, x2, y2", "x1: float, y1: float, x2: float, y2: float -> float", "computes the distance between two points|returns the distance of two points", "The differences are squared and added.", "return ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5"),
    _f("percentage percent", "part, whole", "part: float, whole: float -> float", "computes a percentage|returns how many percent a part is of a whole", "The ratio is multiplied by 100.", "return 100 * part / whole"),
    _f("discount final_price", "price, percent", "price: float, percent: float -> float", "applies a discount to a price|returns a price after a discount", "The discount is taken off the price.", "return price - price * percent / 100"),
    _f("transpose", "matrix", "matrix: list[list] -> list[list]", "transposes a matrix|swaps the rows and columns of a matrix", "`zip(*matrix)` walks over the columns.", "return [list(row) for row in zip(*matrix)]"),
    _f("dot_product dot", "a, b", "a: list[float], b: list[float] -> float", "computes the dot product of two vectors|returns the dot product of two lists", "The products of the pairs are added.", "return sum(x * y for x, y in zip(a, b))"),
    _f("read_lines load_lines", "path", "path: str -> list[str]", "reads the lines of a file|returns all lines of a text file", "The file is closed at the end of the `with` block.", "with open(path) as file:\n    return file.read().splitlines()"),
    _f("write_text save_text", "path, text", "path: str, text: str -> None", "writes a text to a file|saves a string in a file", "The mode `w` replaces an old file.", 'with open(path, "w") as file:\n    file.write(text)'),
    _f("count_lines number_of_lines", "path", "path: str -> int", "counts the lines of a file|returns the number of lines in a file", "A file can be looped over line by line.", "with open(path) as file:\n    return sum(1 for _ in file)"),
    _f("greet hello", "name", "name: str -> str", "greets a person by name|returns a greeting", "An f-string puts the name into the text.", 'return f"Hello, {name}!"'),
    _f("running_total cumulative_sum", "numbers", "numbers: list[int] -> list[int]", "returns the running totals of a list|computes cumulative sums", "The total so far is stored after each number.", "totals = []\ntotal = 0\nfor n in numbers:\n    total += n\n    totals.append(total)\nreturn totals"),
    _f("differences neighbors_difference", "numbers", "numbers: list[int] -> list[int]", "returns the differences of neighboring numbers|computes the difference of each pair of neighbors", "`zip` pairs each number with the next.", "return [b - a for a, b in zip(numbers, numbers[1:])]"),
    _f("most_common most_frequent", "items", "items: list -> object", "returns the most common item of a list|finds the most frequent item", "The count of each item is the key.", "return max(set(items), key=items.count)"),
    _f("all_positive", "numbers", "numbers: list[int] -> bool", "checks if all numbers are positive|tells whether a list has only positive numbers", "`all` stops at the first number that fails.", "return all(n > 0 for n in numbers)"),
    _f("any_negative has_negative", "numbers", "numbers: list[int] -> bool", "checks if a list has a negative number|tells whether any number is below zero", "`any` stops at the first match.", "return any(n < 0 for n in numbers)"),
    _f("is_valid_email check_email", "text", "text: str -> bool", "checks if a string looks like an email|tests an email address", "It only looks for one @ and a dot after it.", 'name, at, domain = text.partition("@")\nreturn bool(name) and "." in domain'),
    _f("balanced_brackets is_balanced", "text", "text: str -> bool", "checks if brackets are balanced|tells whether all parentheses are closed", "The depth must never be negative and must end at zero.", 'depth = 0\nfor c in text:\n    if c == "(":\n        depth += 1\n    elif c == ")":\n        depth -= 1\n        if depth < 0:\n            return False\nreturn depth == 0'),
    _f("countdown", "n", "n: int -> list[int]", "counts down from n to 1|returns a countdown as a list", "The step of the range is -1.", "return list(range(n, 0, -1))"),
    _f("timer measure_time", "function", "function: object -> float", "measures how long a function takes|times a function call", "The clock is read before and after the call.", "import time\n\nstart = time.perf_counter()\nfunction()\nreturn time.perf_counter() - start"),
    _f("roll_dice dice", "", "-> int", "rolls a die|returns a random number from 1 to 6", "`randint` includes both ends.", "import random\n\nreturn random.randint(1, 6)"),
]  # fmt: skip

ASK = [
    "Write a function that {d}.", "Write a Python function that {d}.", "Write a Python function `{n}` that {d}.",
    "How do I write a function that {d}?", "Can you write a function that {d}?", "Give me a Python function that {d}.",
    "I need a function that {d}.", "Show me a Python function that {d}.", "Implement a function `{n}` that {d}.",
    "Create a function that {d}.", "Please write code for a function that {d}.", "Write `{n}({p})`, a function that {d}.",
    "Define a Python function called `{n}` which {d}.", "Code a function that {d}.", "Python: a function that {d}",
    "Write a short function that {d}.", "Could you show me a function that {d}?", "Write me a function which {d}.",
    "Make a function that {d}.", "Help me write a function that {d}.",
]  # fmt: skip
COMPLETE = [
    "Complete this function:\n\n```python\n{h}\n```", "Finish this function:\n\n```python\n{h}\n```",
    "Fill in the body:\n\n```python\n{h}\n```", "{h}", "Complete the code:\n\n```python\n{h}\n```",
    "Implement this:\n\n```python\n{h}\n```",
]  # fmt: skip
LEADS = ["", "", "Here is a function that {d}:\n\n", "Here it is:\n\n", "You can write it like this:\n\n"]
THOUGHTS = [
    "The function `{n}` takes {q}. It should be one that {d}. {note}",
    "I need a function that {d}. {note}",
    "The task is a function that {d}. {note} I will write `{n}({p})`.",
]


def _signature(name: str, function: Function, typed: bool) -> str:
    if not typed:
        return f"def {name}({function.params}):"
    args, _, result = function.hints.rpartition("->")
    return f"def {name}({args.strip()}) -> {result.strip()}:"


def _exchange(draw: Draw, function: Function, key: str, does: str, family: str) -> Exchange:
    """An answer to one of the ways of asking for `function`, with a docstring, sometimes typed, explained or used."""
    name = draw.one(function.names)
    body = draw.one(function.bodies)
    if name != function.names[0]:
        body = body.replace(function.names[0] + "(", name + "(")
    head = _signature(name, function, draw.chance(0.25))
    doc = does[:1].upper() + does[1:] + "."
    quoted = f'    """{doc}"""'
    code = f"{head}\n{quoted}\n{textwrap.indent(body, '    ')}"
    if draw.chance(0.2):
        asked = draw.template("complete", COMPLETE, keep=2).format(h=f"{head}\n{quoted}")
        lead = ""
    else:
        asked = draw.say(draw.template(key, ASK, keep=2).format(d=does, n=name, p=function.params))
        lead = draw.one(LEADS).format(d=does)
    answer = f"{lead}```python\n{code}\n```"
    if draw.chance(0.5):
        answer += f"\n\n{function.note}"
    thought = draw.one(THOUGHTS).format(
        n=name, p=function.params, q=function.params or "no arguments", d=does, note=function.note
    )
    return Exchange(asked, answer, thought, family)


def library(draw: Draw) -> Exchange:
    function = draw.one(LIBRARY)
    does = draw.one(function.does)
    return _exchange(draw, function, f"code:{does}", does, "library")


FILTERS = [
    ("", ""), ("even ", "n % 2 == 0"), ("odd ", "n % 2 == 1"), ("positive ", "n > 0"), ("negative ", "n < 0"),
    ("nonzero ", "n != 0"), ("large ", "n > 100"),
]  # fmt: skip
WORD_FILTERS = [
    ("", ""),
    ("long ", "len(w) > 5"),
    ("short ", "len(w) < 4"),
    ("capitalized ", "w[0].isupper()"),
    ("nonempty ", "w"),
]
MAPS = [
    ("numbers", "n"),
    ("squares of the {f}numbers", "n * n"),
    ("cubes of the {f}numbers", "n ** 3"),
    ("doubles of the {f}numbers", "2 * n"),
    ("absolute values of the {f}numbers", "abs(n)"),
    ("halves of the {f}numbers", "n / 2"),
]
WORD_MAPS = [
    ("words", "w"),
    ("lengths of the {f}words", "len(w)"),
    ("upper-case forms of the {f}words", "w.upper()"),
    ("first letters of the {f}words", "w[0]"),
    ("reversed {f}words", "w[::-1]"),
]
REDUCES = [
    ("returns a list of the {x}", "[{c}]", "list"),
    ("returns the sum of the {x}", "sum({c})", "sum"),
    ("returns the largest of the {x}", "max({c})", "largest"),
    ("returns the smallest of the {x}", "min({c})", "smallest"),
    ("returns the set of the {x}", "{{{c}}}", "set"),
]
WORD_REDUCES = [
    ("returns a list of the {x}", "[{c}]", "list"),
    ("returns the set of the {x}", "{{{c}}}", "set"),
    ("returns a sorted list of the {x}", "sorted({c})", "sorted"),
]


def combined(draw: Draw) -> Exchange:
    """A function put together from a condition, a mapping and a summary; whole combinations are held out."""
    while True:
        is_words = draw.chance(0.35)
        f, condition = draw.one(WORD_FILTERS if is_words else FILTERS)
        m, expression = draw.one(WORD_MAPS if is_words else MAPS)
        r, form, short = draw.one(WORD_REDUCES if is_words else REDUCES)
        key = f"combined:{f}|{m}|{r}"
        if draw.allows(key) and (condition or expression not in ("n", "w") or short != "list"):
            break
    var, args = ("w", "words") if is_words else ("n", "numbers")
    what = m.format(f=f) if "{f}" in m else f + m
    does = r.format(x=what) + draw.one([f" in a list of {args}", " in a list", ""])
    each = f"{expression} for {var} in {args}" + (f" if {condition}" if condition else "")
    bodies = [f"return {form.format(c=each)}"]
    if short in ("list", "sum"):
        start, step = ("[]", f"result.append({expression})") if short == "list" else ("0", f"result += {expression}")
        inner = f"    if {condition}:\n        {step}" if condition else f"    {step}"
        bodies.append(f"result = {start}\nfor {var} in {args}:\n{inner}\nreturn result")
    base = m.replace("upper-case forms", "upper_forms").split(" of the ")[0].replace("{f}", "")
    name = "_".join(([] if short == "list" else [short]) + (f + base).split())
    item = "str" if is_words else "int"
    out = {"list": "list", "set": "set", "sorted": "list"}.get(short, item)
    kind = f"The condition is `{condition}`." if condition else f"The expression is `{expression}`."
    function = Function((name,), args, f"{args}: list[{item}] -> {out}", (does,), tuple(bodies), kind)
    return _exchange(draw, function, "combined", does, "combined")


FAMILIES = [(library, 6.0), (combined, 3.0)]


def standard_library(limit: int = 900) -> list[Exchange]:
    """Documented functions of the running Python's own library, short enough to be an answer.

    The same interpreter always gives the same list; another version of Python gives a slightly different one.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    out: list[Exchange] = []
    packages = ("asyncio", "collections", "concurrent/futures", "email", "html", "http", "importlib", "json", "logging")
    folders = [root, *(root / name for name in packages), *(root / name for name in ("unittest", "urllib", "xml/dom"))]
    for path in sorted(p for folder in folders for p in folder.glob("*.py")):
        try:
            tree = ast.parse(source := path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        lines = source.splitlines()
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("__"):
                continue
            doc = ast.get_docstring(node)
            code = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
            if not doc or node.decorator_list:
                continue
            line = inspect.cleandoc(doc).split("\n\n")[0].replace("\n", " ").strip()
            if len(code) > limit or len(line) > 160 or len(line) < 12 or len(node.body) < 2 or not code.isascii():
                continue
            head = f"def {node.name}({ast.unparse(node.args)}):"
            asked = f"Write the Python function `{node.name}({ast.unparse(node.args)})`: {line}"
            if len(out) % 2:
                asked = f'Complete this function:\n\n```python\n{head}\n    """{line}"""\n```'
            thought = f"The function is `{node.name}`. {line}"
            out.append(Exchange(asked, f"```python\n{code.rstrip()}\n```", thought, "standard library"))
    return out
