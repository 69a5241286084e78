"""Ask a topic a question: python batch_query.py [URL]

`hawser up` starts a cluster on this machine and prints its URL.
"""

import sys

import msgspec

import hawser
import hawser.spark

url = sys.argv[1] if len(sys.argv) > 1 else "hawser://127.0.0.1:7400"
with hawser.connect(url, name="shop") as bus:
    orders = bus.topic("spark-prices", partitions=2)
    customers = ("anna", "ben", "cleo")
    for number in range(30):
        customer = customers[number % 3]
        order = {"customer": customer, "price": 10.0 + number}
        orders.publish(msgspec.json.encode(order), key=customer.encode())

    spark = hawser.spark.session("batch query")
    table = (
        spark.read.format("hawser")
        .option("endpoints", url)
        .option("subscribe", "spark-prices")
        .option("valueFormat", "json")
        .option("valueSchema", "customer string, price double")
        .load()
    )
    table.createOrReplaceTempView("orders")
    answer = spark.sql(
        "SELECT value.customer, count(*) AS orders, sum(value.price) AS total"
        " FROM orders GROUP BY value.customer ORDER BY total DESC"
    )
    for row in answer.collect():
        print(f"{row.customer} ordered {row.orders} times, for {row.total:.2f}")

    orders.delete()
