"""A topic in a notebook: each `# %%` is a cell, for Jupyter, VS Code or PyCharm.

As a program: python notebook.py [URL]
"""

# %% Connect.
import sys

import hawser
import hawser.spark

url = sys.argv[1] if len(sys.argv) > 1 else "hawser://127.0.0.1:7400"
bus = hawser.connect(url, name="notebook")
spark = hawser.spark.session("notebook")

# %% Something to look at.
clicks = bus.topic("spark-clicks")
clicks.publish_many([f"page {number % 4}".encode() for number in range(200)])

# %% A topic is a DataFrame. What it holds is fixed by the first look; `load` again to see more.
frame = spark.read.format("hawser").options(endpoints=url, subscribe="spark-clicks").load()
frame.printSchema()

# %% Only the columns that are needed: the others are not even built.
newest = (
    spark.read.format("hawser")
    .options(endpoints=url, subscribe="spark-clicks")
    .schema("offset bigint, timestamp timestamp")
    .load()
    .orderBy("offset", ascending=False)
)
newest.show(3, truncate=False)

# %% As Arrow, and from there as pandas.
counts = frame.selectExpr("CAST(value AS STRING) AS page").groupBy("page").count().orderBy("page")
pages = counts.toArrow().to_pandas()
print(pages.to_string(index=False))

# %% Done.
print(f"{pages['count'].sum()} clicks on {len(pages)} pages")
clicks.delete()
bus.close()
