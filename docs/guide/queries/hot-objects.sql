-- Objects by the time that all ranks lost to them.
SELECT object,
       count(DISTINCT rank) AS ranks,
       round(sum(cost_ns) / 1e6, 1) AS lost_ms,
       round(100 * sum(cost_ns) / sum(sum(cost_ns)) OVER (), 1) AS lost_percent
FROM read_parquet('one/**/*.parquet', hive_partitioning = true)
GROUP BY object
ORDER BY lost_ms DESC, object
LIMIT 20;
