"""`make spark-proof`: a Spark program that is killed again and again, and what came out of it."""
