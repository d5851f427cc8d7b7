//! Traces a whole guest: `trace -- qemu-system-x86_64 …`. The command is the emulator, which gets the tracer as an
//! additional argument.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::Error;

/// Prefix of a system emulator's file name, before the architecture.
const PREFIX: &[u8] = b"qemu-system-";
/// The architecture whose guests can be traced.
const ARCHITECTURE: &[u8] = b"x86_64";

/// Does the program emulate a whole system?
pub(super) fn is_emulator(program: &Path) -> bool {
    let name = program.file_name().unwrap_or_default().as_bytes();
    name.starts_with(PREFIX)
}

/// The words to run without the tracer's, and messages about them.
pub(super) fn words(
    program: &Path,
    arguments: &[OsString],
) -> Result<(Vec<OsString>, Vec<String>), Error> {
    let name = program.file_name().unwrap_or_default().as_bytes();
    if name.strip_prefix(PREFIX) != Some(ARCHITECTURE) {
        return Err(Error::GuestArchitecture(program.to_owned()));
    }
    let text: Vec<String> = arguments
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let values = |option: &'static str| {
        let pairs = text.windows(2);
        pairs.filter_map(move |pair| {
            // QEMU accepts one dash or two.
            let given = pair[0].strip_prefix('-').unwrap_or(&pair[0]);
            (given.strip_prefix('-').unwrap_or(given) == option).then_some(pair[1].as_str())
        })
    };
    let machines = values("machine").chain(values("M"));
    let of_machine = machines
        .flat_map(|value| value.split(','))
        .filter_map(|part| part.strip_prefix("accel="));
    let accelerators: Vec<&str> = values("accel").chain(of_machine).collect();
    let given = |option: &str| {
        text.iter()
            .any(|word| word.trim_start_matches('-') == option && word.starts_with('-'))
    };
    if given("enable-kvm") || accelerators.iter().any(|value| !value.starts_with("tcg")) {
        return Err(Error::GuestOnProcessor);
    }
    if given("icount")
        || accelerators
            .iter()
            .any(|value| value.contains("thread=single"))
    {
        return Err(Error::GuestCpusShareThread);
    }
    let mut words = vec![OsString::from(program)];
    words.extend_from_slice(arguments);
    if accelerators.is_empty() {
        words.extend(["-accel".into(), "tcg,thread=multi".into()]);
    }
    let mut notes = Vec::new();
    if !values("append").any(|line| line.split_whitespace().any(|word| word == "nokaslr")) {
        notes.push(
            "the guest's kernel may have moved its regions: without nokaslr on its command line (-append), misses may \
             be counted for another region"
                .to_owned(),
        );
    }
    Ok((words, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(arguments: &[&str]) -> Result<(Vec<String>, Vec<String>), Error> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let (words, notes) = words(Path::new("/q/qemu-system-x86_64"), &arguments)?;
        let words = words.into_iter().map(|word| word.into_string().unwrap());
        Ok((words.collect(), notes))
    }

    #[test]
    fn the_tracer_and_a_thread_for_each_cpu_are_added() {
        let (words, notes) = tried(&["-m", "256", "-append", "quiet nokaslr"]).unwrap();
        let expected = "/q/qemu-system-x86_64 -m 256 -append quiet nokaslr -accel tcg,thread=multi";
        assert_eq!(words.join(" "), expected);
        assert!(notes.is_empty());
        let (words, notes) = tried(&["-machine", "q35,accel=tcg"]).unwrap();
        assert_eq!(words[1..], ["-machine", "q35,accel=tcg"]);
        assert!(notes[0].contains("nokaslr"), "{notes:?}");
    }

    #[test]
    fn guests_that_cannot_be_traced_are_refused() {
        for arguments in [
            &["-enable-kvm"][..],
            &["-accel", "kvm"],
            &["--accel", "tcg,thread=single"],
            &["-M", "pc,accel=kvm:tcg"],
            &["-icount", "shift=2"],
        ] {
            let error = tried(arguments).unwrap_err();
            assert!(error.is_usage(), "{arguments:?}: {error}");
        }
        let other = words(Path::new("qemu-system-aarch64"), &[]).unwrap_err();
        assert!(other.to_string().contains("x86-64"), "{other}");
        assert!(is_emulator(Path::new("/usr/bin/qemu-system-i386")));
        assert!(!is_emulator(Path::new("/usr/bin/qemu-x86_64")));
    }
}
