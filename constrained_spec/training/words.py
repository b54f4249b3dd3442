"""Names and things that the training prompts are filled with."""

from __future__ import annotations

FIRST = (
    "Maya", "Omar", "Lena", "Hugo", "Priya", "Tariq", "Ines", "Jonas", "Amara", "Felix", "Noor", "Elias", "Sofia",
    "Kenji", "Ruth", "Marco", "Hana", "Pavel", "Chloe", "Samir", "Greta", "Luis", "Aisha", "Viktor", "Nina", "Andre",
    "Yara", "Oscar", "Mei", "Dmitri", "Clara", "Rashid", "Eva", "Mateo", "Ingrid", "Kofi", "Laura", "Stefan", "Anika",
    "James", "Mary", "Robert", "Patricia", "John", "Linda", "Michael", "Susan", "David", "Karen", "Daniel", "Nancy",
    "Paul", "Emma", "George", "Alice", "Peter", "Helen",
)  # fmt: skip
LAST = (
    "Okafor", "Lindgren", "Moreau", "Haddad", "Novak", "Santos", "Fischer", "Iyer", "Tanaka", "Rossi", "Dubois",
    "Petrov", "Jensen", "Castillo", "Mbeki", "Larsen", "Weber", "Costa", "Nakamura", "Farouk", "Kowalski", "Silva",
    "Berg", "Romano", "Adeyemi", "Schmidt", "Laurent", "Popov", "Khan", "Vargas", "Eriksen", "Bauer", "Smith",
    "Johnson", "Brown", "Taylor", "Miller", "Davis", "Wilson", "Moore", "Clark", "Lewis", "Walker", "Hall", "Young",
    "King", "Wright", "Scott", "Green", "Baker",
)  # fmt: skip
CITIES = (
    "Lisbon", "Oslo", "Nairobi", "Toronto", "Kyoto", "Prague", "Bogota", "Hamburg", "Lyon", "Accra", "Dublin",
    "Chennai", "Seattle", "Warsaw", "Lima", "Naples", "Denver", "Bergen", "Antwerp", "Osaka", "Cairo", "Boston",
    "Madrid", "Vienna", "Athens", "Zurich", "Austin", "Chicago", "London", "Paris", "Rome", "Sydney",
)  # fmt: skip
COUNTRIES = (
    "Portugal", "Norway", "Kenya", "Canada", "Japan", "Czechia", "Colombia", "Germany", "France", "Ghana", "Ireland",
    "India", "Poland", "Peru", "Italy", "Belgium", "Egypt", "Spain", "Austria", "Greece", "Switzerland", "Australia",
    "Brazil", "Mexico",
)  # fmt: skip
COMPANIES = (
    "Northwind Tools", "Blue Finch Studio", "Cedar & Sons", "Polar Freight", "Lumen Optics", "Granite Works",
    "Kestrel Systems", "Marigold Foods", "Ferrous Supply", "Willow Press", "Tern Logistics", "Quarry Software",
    "Bright Harbor", "Oakline Furniture", "Summit Outdoor", "Violet Labs",
)  # fmt: skip
ITEMS = (
    "desk lamps", "copper pipes", "notebooks", "coffee filters", "ladders", "paint rollers", "keyboards", "bricks",
    "garden hoses", "office chairs", "light bulbs", "water bottles", "screws", "monitors", "blankets", "batteries",
    "tents", "cables", "printer cartridges", "mugs", "shelves", "brushes", "gloves", "filters",
)  # fmt: skip
JOBS = (
    "nurse", "carpenter", "data analyst", "teacher", "electrician", "chef", "geologist", "translator", "pilot",
    "librarian", "plumber", "software engineer", "photographer", "architect", "farmer", "journalist", "dentist",
)  # fmt: skip
HOBBIES = (
    "chess", "hiking", "pottery", "cycling", "painting", "gardening", "swimming", "cooking", "birdwatching",
    "reading", "running", "sailing", "knitting", "photography", "dancing", "fishing", "climbing", "astronomy",
)  # fmt: skip
TOPICS = (
    "photosynthesis", "the water cycle", "black holes", "the French Revolution", "supply and demand", "volcanoes",
    "the human heart", "recursion", "climate change", "the Roman Empire", "electric motors", "sleep", "vaccines",
    "the stock market", "bees", "plate tectonics", "the printing press", "DNA", "gravity", "healthy eating",
    "machine learning", "the solar system", "renewable energy", "democracy", "the immune system", "tides", "glaciers",
    "probability", "the Silk Road", "coral reefs", "inflation", "time management", "jazz", "the Renaissance",
    "databases", "how airplanes fly", "the internet", "fermentation", "earthquakes", "photography", "meditation",
    "public speaking", "the digestive system", "encryption", "rainforests", "the moon", "batteries", "bridges",
    "migration of birds", "the Industrial Revolution", "chemical bonds", "music theory", "budgeting",
    "good sleep habits", "whales",
)  # fmt: skip
THINGS = (
    "a small bakery", "a lost dog", "an old lighthouse", "a robot", "a dragon", "two brothers", "a clever fox",
    "a spaceship", "a young wizard", "a forgotten library", "a rainy city", "a talking tree", "a mountain village",
    "a detective", "a music box", "a lonely whale", "a train journey", "a secret garden", "a broken clock",
)  # fmt: skip
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
