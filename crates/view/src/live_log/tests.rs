use std::io::Write;

use super::*;

const HEAD: &str = r#"{"nearpage_live":1,"policy":"migrate","parameters":[],"nodes":[0,1],"memory_nodes":3,"pages":8,"page_bytes":4096,"seed":1,"source":"clock","estimated":[]}"#;

/// An interval of a second. `seen` has the number of each page of process 0, the node of its user, and the node of the
/// page.
fn entry(second: u64, placed: &str, seen: &[(u32, u16, u16)], actions: &str) -> String {
    let begin = second * 1_000_000_000;
    let observations: Vec<Value> = seen
        .iter()
        .enumerate()
        .map(|(at, (page, node, home))| json!([at, page, node, home, 7, 0, 0]))
        .collect();
    format!(
        r#"{{"interval":{{"begin_ns":{begin},"end_ns":{},"accesses_per_thousand":1000,"instructions":0,"free_per_10000":5000,"full":[false,false],"forgotten":[],"observations":{},"placed":[{placed}],"threads":[],"move_ns":0}},"actions":[{actions}],"thread_moves":[],"processes":[],"time_unix_ms":5}}"#,
        begin + 1_000_000_000,
        Value::from(observations),
    )
}

fn placed(after: usize, page: u32, number: u64) -> String {
    json!({ "after": after, "page": page, "process": 0, "number": number }).to_string()
}

fn log(lines: &[&str]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    for line in lines {
        writeln!(file, "{line}").expect("written");
    }
    file
}

#[test]
fn pages_move_when_they_are_seen_elsewhere() {
    let places = [placed(0, 0, 0x10), placed(0, 1, 0x11)].join(",");
    let action = r#"{"page":0,"kind":"interleave","node":1,"rule":"hot","counts":[0,3],"writes":2,"migrations":0}"#;
    let first = entry(4, &places, &[(0, 1, 0), (0, 1, 0), (1, 0, 0)], action);
    // From the second access on, number 1 stands for another page.
    let second = entry(5, &placed(1, 1, 0x99), &[(0, 1, 1), (1, 1, 1)], "");
    let file = log(&[HEAD, &first, &second]);
    assert!(is_log(file.path()));
    let log = LiveLog::open(file.path()).expect("a log");
    let value = log.answer(None);
    assert_eq!(value["intervals"], 2);
    assert_eq!(value["decided"]["interleave"], 1);
    assert_eq!(
        value["decisions"]["such_as"][0]["page"],
        json!([0, "0x10000"])
    );
    assert_eq!(value["latest"]["local_share"], 1.0);
    let result = &value["result"];
    assert_eq!(result["time_ns"], 2_000_000_000u64);
    assert_eq!(result["controller_load"], json!([3, 2]));
    let parts = json!([[1, 2, 0, 0, 0, 3, 0], [2, 0, 1, 0, 0, 0, 2]]);
    assert_eq!(result["timeline"]["parts"], parts);
    assert_eq!(
        result["movements"],
        json!({
            "page_bytes": 4096,
            "kept": [[1_000_000_000u64, 0, "interleave", 0, 1]],
            "omitted": 0,
            "extents": [
                { "process": 0, "address": "0x10000", "first": "00", "last": "10" },
                { "process": 0, "address": "0x99000", "first": "1", "last": "1" },
            ],
            "pages_omitted": 0,
        })
    );
}

#[test]
fn a_log_is_followed_line_by_line() {
    let one = entry(0, &placed(0, 0, 1), &[(0, 0, 0)], "");
    let two = entry(1, "", &[(0, 0, 0)], "");
    let mut file = log(&[HEAD, &one]);
    let log = LiveLog::open(file.path()).expect("a log");
    assert_eq!(log.answer(None)["intervals"], 1);
    // A half-written line does not count.
    write!(file, "{}", &two[..50]).expect("written");
    assert_eq!(log.answer(Some(1)), json!({ "intervals": 1 }));
    writeln!(file, "{}", &two[50..]).expect("written");
    let value = log.answer(Some(1));
    assert_eq!(
        value["result"]["timeline"]["parts"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    writeln!(file, "{{}}").expect("written");
    let value = log.answer(Some(2));
    assert_eq!(value["intervals"], 2);
    assert!(
        value["problem"]
            .as_str()
            .is_some_and(|why| why.starts_with("line 4: ")),
        "{value}"
    );
    file.as_file().set_len(10).expect("cut");
    assert_eq!(log.answer(Some(2))["intervals"], 2);
}

#[test]
fn no_number_is_too_great() {
    let head = HEAD.replace("4096", &u64::MAX.to_string());
    let places = [placed(0, 7, u64::MAX), placed(0, u32::MAX, 0)].join(",");
    let action =
        r#"{"page":7,"kind":"none","node":9,"rule":"","counts":[],"writes":0,"migrations":0}"#;
    let most = u16::MAX;
    let line = entry(
        1 << 33,
        &places,
        &[(7, most, most), (u32::MAX, 0, 1), (3, 1, 1)],
        action,
    );
    let file = log(&[&head, &line]);
    let value = LiveLog::open(file.path()).expect("a log").answer(None);
    assert_eq!(value["problem"], Value::Null, "{value}");
    assert_eq!(value["result"]["controller_load"], json!([0, 2]));
    let such_as = &value["decisions"]["such_as"][0];
    assert_eq!(such_as["page"][1], "0xffffffffffffffff");
}

#[test]
fn truncated_logs_and_files_without_a_log_are_reported() {
    let one = entry(0, "", &[], "");
    let file = log(&[HEAD, &one]);
    let log_ = LiveLog::open(file.path()).expect("a log");
    file.as_file().set_len(10).expect("cut");
    assert_eq!(
        log_.answer(None)["problem"],
        "it became shorter while it was followed"
    );
    let none = log(&[r#"{"nearpage_live":"x"}"#]);
    let error = LiveLog::open(none.path()).expect_err("refused").to_string();
    assert!(
        error.contains("not a log of `nearpage live`: its first line: "),
        "{error}"
    );
    // Messages have one line, whatever the file contains.
    let odd = HEAD.replace("page_bytes", "page\\n\\u001b[31mbytes");
    let error = LiveLog::open(log(&[&odd]).path())
        .expect_err("refused")
        .to_string();
    assert!(error.contains("`page  [31mbytes`"), "{error}");
    // The number of nodes is limited, because each interval takes memory for each node.
    let many = HEAD.replace("[0,1]", &format!("[0{}]", ",1".repeat(64)));
    let error = LiveLog::open(log(&[&many]).path())
        .expect_err("refused")
        .to_string();
    let end = "its first line: expected at most 64 nodes, found 65";
    assert!(error.ends_with(end), "{error}");
}
