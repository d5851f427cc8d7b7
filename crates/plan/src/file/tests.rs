use super::*;

fn team(name: &str, threads: u32) -> Team {
    Team {
        name: name.to_owned(),
        threads,
        beside: 0,
        module: String::new(),
        build_id: BuildId::default(),
        offset: 0,
    }
}

/// A function without a symbol is called by its module and offset, with a plus.
#[test]
fn names_of_teams_may_have_a_plus() {
    let teams = [
        team("main", 1),
        team("server+0x2fc00", 4),
        team("server", 7),
    ];
    let parts = |name| {
        let is_known = |name: &str| teams.iter().any(|team| team.name == name);
        joined(name, is_known).collect::<Vec<_>>()
    };
    assert_eq!(parts("server+0x2fc00"), ["server+0x2fc00"]);
    assert_eq!(parts("main+server+0x2fc00"), ["main", "server+0x2fc00"]);
    assert_eq!(parts("server+0x2fc00+main"), ["server+0x2fc00", "main"]);
    assert_eq!(parts("main+server"), ["main", "server"]);
    assert_eq!(parts("main+client+0x10"), ["main", "client", "0x10"]);
    assert_eq!(parts(""), [""]);
    assert_eq!(threads_of(&teams, "main+server+0x2fc00"), Some(5));
    assert_eq!(threads_of(&teams, "main+server+0x2fc00:reversed"), Some(5));
    assert_eq!(threads_of(&teams, "main+server+0x2fc0"), None);
}
