use super::*;

fn request() -> TraceRequest {
    TraceRequest {
        output: "r".into(),
        replace: false,
        command: vec!["cg".into(), "-n".into()],
        machine: "flash-8".to_owned(),
        schedule: None,
        small_allocations: SmallAllocations::Sampled,
        tracer: TraceOptions::default(),
    }
}

fn tracing(machine: &Machine) -> Tracing {
    let made = Tracing::new(machine, "flash-8", &TraceOptions::default());
    made.unwrap().0
}

#[test]
fn commas_in_paths_are_doubled() {
    let argument = plugin_argument(Path::new("/a,b/t.so"), Path::new("/s"), Path::new("/o,"));
    assert_eq!(argument, "/a,,b/t.so,setup=/s,out=/o,,");
}

#[test]
fn metadata_says_what_is_traced_and_how_threads_are_laid_out() {
    let machine = nearpage_machine::preset("flash-8").unwrap();
    let mut request = request();
    for (threads, pinning) in [
        (ThreadPlacement::None, ThreadPinning::Compact),
        (ThreadPlacement::Compact, ThreadPinning::Compact),
        (ThreadPlacement::Scatter, ThreadPinning::Scatter),
    ] {
        request.tracer.threads = threads;
        let made = metadata(&request, &machine, tracing(&machine), None);
        assert_eq!(made.thread_placement, pinning);
        assert_eq!(made.command, ["cg", "-n"]);
        assert_eq!(made.source, Source::Tracer);
        assert_eq!(made.nodes, machine.node_ids());
        assert!(made.build_id.is_empty() && made.tracing.is_some());
    }
}

#[test]
fn assumptions_about_the_machine_are_reported() {
    let machine = nearpage_machine::preset("flash-8").unwrap();
    let subject = Subject {
        program: "/bin/cg".into(),
        is_guest: false,
        words: Vec::new(),
        image: None,
        notes: vec!["of the words".to_owned()],
    };
    assert_eq!(subject.notes(&machine, &[]), ["of the words"]);
    let assumed = ["caches", "a clock"].map(str::to_owned);
    let assumption = format!("{}: assumed caches, a clock", machine.name);
    assert_eq!(
        subject.notes(&machine, &assumed),
        ["of the words".to_owned(), assumption]
    );
}

#[test]
fn emulated_programs_wait_passively_unless_they_were_told_how() {
    let of = |has_wait_policy| {
        let folder = tempfile::tempdir().unwrap();
        let logs = folder.path().to_owned();
        let made = environment(
            logs,
            SmallAllocations::Sampled,
            has_wait_policy,
            &mut Vec::new(),
        );
        let names = made
            .into_iter()
            .map(|(name, _)| name.into_string().unwrap());
        names.collect::<Vec<_>>()
    };
    let always = [
        nearpage_wire::LOG_DIRECTORY_VARIABLE,
        nearpage_wire::SMALL_SAMPLE_BYTES_VARIABLE,
        nearpage_wire::MESSAGES_VARIABLE,
        nearpage_wire::UNWINDING_VARIABLE,
    ];
    assert_eq!(of(true), always);
    assert_eq!(of(false), [&always[..], &[WAIT_POLICY]].concat());
}

#[test]
fn options_of_programs_are_refused_of_guests() {
    let refused = |change: fn(&mut TraceRequest)| {
        let mut request = request();
        change(&mut request);
        let error = refuse_of_guests(&request).unwrap_err();
        assert!(error.is_usage());
        error.to_string()
    };
    assert!(refuse_of_guests(&request()).is_ok());
    let schedule = refused(|request| request.schedule = Some("s.toml".into()));
    assert!(
        schedule.starts_with("--schedule goes with a program"),
        "{schedule}"
    );
    let all = refused(|request| request.small_allocations = SmallAllocations::All);
    assert!(all.starts_with("--all-allocations"), "{all}");
    let serial = refused(|request| request.tracer.serial = true);
    assert!(serial.starts_with("--serial"), "{serial}");
}

#[test]
fn the_tracer_is_told_in_a_file_beside_the_logs() {
    let folder = tempfile::tempdir().unwrap();
    let machine = nearpage_machine::preset("flash-8").unwrap();
    let metadata = metadata(&request(), &machine, tracing(&machine), None);
    let mut log = LogWriter::create(&folder.path().join("r"), metadata, &machine).unwrap();
    let folders = Folders::of(&log).unwrap();
    let setup = folders.write_setup(&mut log).unwrap();
    assert_eq!(setup.parent(), Some(folders.logs.as_path()));
    let written = fs::read_to_string(setup).unwrap();
    assert_eq!(written, tracing(&machine).setup);
    assert!(has_no_trace(&folders.traces).unwrap());
    fs::write(folders.traces.join("1.trace"), "").unwrap();
    assert!(!has_no_trace(&folders.traces).unwrap());
}

#[test]
fn nothing_is_written_for_a_command_that_cannot_be_traced() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("r");
    let traced = |command: &str, machine: &str| {
        let request = TraceRequest {
            output: output.clone(),
            command: vec![command.into()],
            machine: machine.to_owned(),
            ..request()
        };
        trace(&request).unwrap_err()
    };
    let script = folder.path().join("text");
    fs::write(&script, "no program").unwrap();
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let error = traced(script.to_str().unwrap(), "flash-8");
    assert!(matches!(error, Error::NotAProgram(_)), "{error}");
    let error = traced("/no/such/command", "flash-8");
    assert!(matches!(error, Error::Plan(_)), "{error}");
    assert!(!output.exists());
}
