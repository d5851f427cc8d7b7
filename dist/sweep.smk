# Snakemake rules that compute a sweep of nearpage in parts:
#   snakemake -s sweep.smk --cores 8 --config sweep=sweep.toml shards=8
# With a profile or executor of a cluster, each part is a job. Results are in the sweep's .cells folder, and what is there
# is not computed again.

SWEEP = config["sweep"]
SHARDS = int(config.get("shards", 8))
CELLS = SWEEP.removesuffix(".toml") + ".cells"

rule report:
    input: expand(CELLS + "/shard-{k}-of-{n}.done", k=range(1, SHARDS + 1), n=SHARDS)
    output: SWEEP.removesuffix(".toml") + ".csv"
    shell: "nearpage sweep report --csv {SWEEP:q} >{output:q}"

rule shard:
    input: SWEEP
    output: touch(CELLS + "/shard-{k}-of-{n}.done")
    threads: 1
    shell: "nearpage simulate --sweep {input:q} --shard {wildcards.k}/{wildcards.n} --jobs {threads}"
