-- Share of each host's accesses to another node's memory, of those whose node is known.
SELECT job, host,
       count(DISTINCT rank) AS ranks,
       round(sum(weight)) AS accesses,
       round(100 * sum(weight) FILTER (WHERE node <> cpu_node)
             / sum(weight) FILTER (WHERE node IS NOT NULL AND cpu_node IS NOT NULL), 1) AS remote_percent
FROM read_parquet('one/**/*.parquet', hive_partitioning = true)
GROUP BY job, host
ORDER BY remote_percent DESC NULLS LAST, host;
