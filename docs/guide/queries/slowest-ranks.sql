-- Ranks that lose most time to memory, and the object that costs each of them most.
WITH of_object AS (
  SELECT job, host, rank, object, sum(cost_ns) AS cost_ns
  FROM read_parquet('one/**/*.parquet', hive_partitioning = true)
  GROUP BY job, host, rank, object
)
SELECT job, host, rank,
       round(sum(cost_ns) / 1e6, 1) AS lost_ms,
       arg_max(object, cost_ns) AS costliest_object
FROM of_object
GROUP BY job, host, rank
ORDER BY lost_ms DESC, rank
LIMIT 20;
