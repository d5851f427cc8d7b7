//! Programs from Debian's packages that take a few tenths of a second each and always give the same output.

use std::path::Path;

/// A program: a shell script that runs in its own folder. `$INPUTS` has `text` (2 MB), `numbers` and `hello.c`.
#[derive(Debug)]
pub struct Program {
    /// Name in events.
    pub name: &'static str,
    /// Commands that must be installed.
    needs: &'static [&'static str],
    /// The script.
    pub script: &'static str,
}

/// The programs whose commands are all installed.
pub fn available() -> Vec<&'static Program> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |command: &&str| match command.starts_with('/') {
        true => Path::new(command).exists(),
        false => std::env::split_paths(&path).any(|folder| folder.join(command).exists()),
    };
    let programs = PROGRAMS.iter();
    programs
        .filter(|program| program.needs.iter().all(is_there))
        .collect()
}

const fn program(
    name: &'static str,
    needs: &'static [&'static str],
    script: &'static str,
) -> Program {
    Program {
        name,
        needs,
        script,
    }
}

const PROGRAMS: &[Program] = &[
    program("sort", &["sort"], r#"sort -S 1M "$INPUTS/text""#),
    program(
        "parallel sort",
        &["sort"],
        r#"sort --parallel=4 -S 4M "$INPUTS/text" | uniq -c | tail -n 5"#,
    ),
    program(
        "gzip",
        &["gzip"],
        r#"gzip -9nc "$INPUTS/text" >z; gunzip -c z | cmp - "$INPUTS/text""#,
    ),
    program("pigz", &["pigz"], r#"pigz -p 4 -9nc "$INPUTS/text""#),
    program(
        "xz",
        &["xz"],
        r#"xz -T2 -3c "$INPUTS/text" | xz -dc | cksum"#,
    ),
    program("bzip2", &["bzip2"], r#"bzip2 -c "$INPUTS/text" | cksum"#),
    program(
        "zstd",
        &["zstd"],
        r#"zstd -q -T3 -12 -c "$INPUTS/text" | zstd -dqc | cksum"#,
    ),
    program(
        "checksums",
        &["sha256sum"],
        r#"sha256sum <"$INPUTS/text"; md5sum <"$INPUTS/text"; b2sum <"$INPUTS/text""#,
    ),
    program(
        "awk",
        &["awk"],
        r#"awk '{ count[$NF % 977]++ } END { for (i = 0; i < 977; i++) sum += count[i] * i; print NR, sum }' "$INPUTS/text""#,
    ),
    program(
        "sed",
        &["sed"],
        r#"sed -E 's/([0-9]+) line ([0-9]+)/\2 \1/' "$INPUTS/text" | tail -n 3"#,
    ),
    program(
        "grep",
        &["grep"],
        r#"grep -cE '7.*7.*7$' "$INPUTS/text"; grep -c nothing "$INPUTS/text""#,
    ),
    program(
        "perl",
        &["perl"],
        r#"perl -e 'my %h; $h{$_ * 7919 % 104729} = $_ for 1 .. 90000; my $s = 0; $s += $_ * $h{$_} % 31 for sort keys %h; print "$s\n"; exit 3'"#,
    ),
    program(
        "python",
        &["/usr/bin/python3"],
        r#"/usr/bin/python3 -c '
import threading, hashlib
out = {}
def work(k):
    rows = [(i * 7919 % 10007, str(i)) for i in range(30000)]
    rows.sort()
    out[k] = hashlib.sha1(repr(rows[k::97]).encode()).hexdigest()
threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print(out[0], out[3])
raise SystemExit(7)'"#,
    ),
    program(
        "forking python",
        &["/usr/bin/python3"],
        r#"/usr/bin/python3 -c '
import os, subprocess, sys
read, write = os.pipe()
if os.fork() == 0:
    os.close(read)
    os.write(write, subprocess.run(["sort", "-n"], input=b"3\n1\n2\n", stdout=subprocess.PIPE).stdout)
    os._exit(5)
os.close(write)
print(os.read(read, 100), os.waitstatus_to_exitcode(os.wait()[1]))'"#,
    ),
    program(
        "sqlite",
        &["sqlite3"],
        r#"sqlite3 t.db 'create table t(a integer primary key, b text);
            with recursive n(i) as (select 1 union all select i + 1 from n where i < 60000)
            insert into t select i, hex(i * 7919 % 65537) from n;
            create index b on t(b); select count(*), max(b) from t where b like "3%";' && rm t.db"#,
    ),
    program(
        "openssl",
        &["openssl"],
        r#"openssl enc -aes-256-cbc -pbkdf2 -nosalt -k secret -in "$INPUTS/text" | openssl dgst -sha512"#,
    ),
    program(
        "git",
        &["git"],
        r#"export HOME=$PWD GIT_AUTHOR_DATE='2001-01-01T00:00:00Z' GIT_COMMITTER_DATE='2001-01-01T00:00:00Z'
            git init -q r 2>&1 && cd r && cp "$INPUTS/text" . && git add . && git -c user.name=a -c user.email=b commit -qm text &&
            git rev-parse HEAD && git gc -q && git fsck 2>&1 && cd .. && rm -rf r"#,
    ),
    program(
        "gcc",
        &["gcc"],
        r#"gcc -O2 -S -o hello.s "$INPUTS/hello.c" && gcc -o hello "$INPUTS/hello.c" && ./hello; echo $?; rm -f hello"#,
    ),
    program(
        "make",
        &["make"],
        r#"printf 'all: a b c\na b c:\n\tsort $(INPUTS)/numbers | md5sum >$@\n' >Makefile; make -s -j3 INPUTS="$INPUTS" && cat a b c"#,
    ),
    program(
        "tar",
        &["tar"],
        r#"tar -C "$INPUTS" --sort=name --mtime=@0 --owner=0 --group=0 -cf - . | gzip -1n | cksum"#,
    ),
    program(
        "bc",
        &["bc"],
        "echo 'scale=350; 4*a(1)' | bc -l | tail -n 1",
    ),
    program(
        "find",
        &["find"],
        r#"find "$INPUTS/" -type f -print0 | sort -z | xargs -0 -n1 -P2 wc -c | sort"#,
    ),
    program(
        "diff",
        &["diff"],
        r#"sed 's/9$/8/' "$INPUTS/numbers" >n; diff "$INPUTS/numbers" n | wc -l; cmp "$INPUTS/numbers" n >/dev/null"#,
    ),
    program(
        "od",
        &["od"],
        r#"od -An -tx1 "$INPUTS/text" | cksum; base64 "$INPUTS/text" | cksum"#,
    ),
    program(
        "bash",
        &["bash"],
        r#"bash -c 'for i in {1..40}; do x=$(echo "$i" | cat); ((s += x)); done; echo "$s"; exit 4'"#,
    ),
    program(
        "dash",
        &["dash"],
        r#"dash -c 'i=0; while [ $i -lt 30000 ]; do i=$((i + 1)); done; echo $i; exec sort -n "$INPUTS/numbers"'"#,
    ),
    program(
        "jq",
        &["jq"],
        r#"jq -n '[range(60000) | {a: ., b: (. * 7919 % 1009)}] | group_by(.b) | map(length) | add'"#,
    ),
    program(
        "node",
        &["node"],
        r#"node -e 'const m = new Map(); for (let i = 0; i < 200000; i++) m.set(i * 7919 % 104729, i); console.log(m.size); process.exit(9)'"#,
    ),
    program(
        "GraphicsMagick",
        &["gm"],
        "gm convert -limit threads 3 -size 300x300 gradient:red-blue -blur 0x3 out.ppm && cksum <out.ppm",
    ),
    program(
        "a child that goes on",
        &["setsid"],
        r#"(setsid sh -c 'sleep 0.3; sort "$INPUTS/numbers" >late.new; mv late.new late' >/dev/null 2>&1 &); echo gone"#,
    ),
    program(
        "a segmentation fault",
        &["bash"],
        r#"ulimit -c 0; bash -c 'sort "$INPUTS/numbers" | tail -n 1; kill -SEGV $$'"#,
    ),
    program("a time limit", &["timeout"], "timeout -s TERM 0.2 sleep 20"),
    program(
        "a broken pipe",
        &["yes"],
        "yes nearpage | head -n 3; env | grep -c ^LD_PRELOAD=.*missing",
    ),
    program(
        "an emptied environment",
        &["env"],
        r#"i=$INPUTS; env -i sort "$i/numbers" | tail -n 2; env -i /bin/sh -c 'echo "${HOME-none}"'"#,
    ),
    program(
        "closed streams",
        &["sort"],
        r#"sort "$INPUTS/numbers" 2>&- | tail -n 1; sort "$INPUTS/nothing" >&- 2>&-"#,
    ),
    program(
        "stress: memory",
        &["stress-ng"],
        "stress-ng -q --vm 1 --vm-bytes 8M --vm-ops 300 --verify",
    ),
    program(
        "stress: mappings",
        &["stress-ng"],
        "stress-ng -q --mmap 1 --mmap-bytes 4M --mmap-ops 4 --verify",
    ),
    program(
        "stress: malloc",
        &["stress-ng"],
        "stress-ng -q --malloc 2 --malloc-ops 20000 --malloc-bytes 16M --verify",
    ),
    program(
        "stress: mremap",
        &["stress-ng"],
        "stress-ng -q --mremap 1 --mremap-bytes 4M --mremap-ops 20 --verify",
    ),
    program(
        "stress: brk",
        &["stress-ng"],
        "stress-ng -q --brk 1 --brk-ops 20000 --verify",
    ),
    program(
        "stress: madvise",
        &["stress-ng"],
        "stress-ng -q --madvise 1 --madvise-ops 4 --verify",
    ),
    program(
        "stress: mprotect",
        &["stress-ng"],
        "stress-ng -q --mprotect 1 --mprotect-ops 400 --verify",
    ),
    program(
        "stress: shared memory",
        &["stress-ng"],
        "stress-ng -q --shm 1 --shm-bytes 1M --shm-ops 8 --verify",
    ),
    program(
        "stress: memfd",
        &["stress-ng"],
        "stress-ng -q --memfd 1 --memfd-bytes 4M --memfd-ops 8 --verify",
    ),
    program(
        "stress: fork",
        &["stress-ng"],
        "stress-ng -q --fork 1 --fork-ops 60 --verify",
    ),
    program(
        "stress: vfork",
        &["stress-ng"],
        "stress-ng -q --vfork 1 --vfork-ops 60 --verify",
    ),
    program(
        "stress: threads",
        &["stress-ng"],
        "stress-ng -q --pthread 1 --pthread-ops 60 --pthread-max 16 --verify",
    ),
    program(
        "stress: clone",
        &["stress-ng"],
        "stress-ng -q --clone 1 --clone-ops 60 --verify",
    ),
    program(
        "stress: switches",
        &["stress-ng"],
        "stress-ng -q --switch 1 --switch-ops 5000 --verify",
    ),
    program(
        "stress: affinity",
        &["stress-ng"],
        "stress-ng -q --affinity 1 --affinity-ops 500 --verify",
    ),
    program(
        "stress: futexes",
        &["stress-ng"],
        "stress-ng -q --futex 1 --futex-ops 2000 --verify",
    ),
];
