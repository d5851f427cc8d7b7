//! Words of a user program for the emulator.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, IoContext};

/// `e_machine` of x86-64 in an ELF header.
const EM_X86_64: u16 = 62;
/// Maximum number of nested script interpreters.
const SCRIPT_DEPTH_MAX: u32 = 4;

/// The words that the emulator runs. A script's interpreter precedes the script, as in the kernel; a program for
/// another architecture is refused.
pub(super) fn words(program: &Path, arguments: &[OsString]) -> Result<Vec<OsString>, Error> {
    let mut words: Vec<OsString> = vec![program.into()];
    words.extend_from_slice(arguments);
    for _ in 0..SCRIPT_DEPTH_MAX {
        let file = PathBuf::from(&words[0]);
        let mut head = Vec::new();
        nearpage_files::open(&file)
            .and_then(|opened| opened.take(512).read_to_end(&mut head))
            .at(&file, "can't be read")?;
        if let Some(line) = head.strip_prefix(b"#!") {
            let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let line = line.trim_ascii();
            let at = line.iter().position(|byte| b" \t".contains(byte));
            let (interpreter, argument) = line.split_at(at.unwrap_or(line.len()));
            let argument = argument.trim_ascii();
            if !argument.is_empty() {
                words.insert(0, OsString::from_vec(argument.to_vec()));
            }
            words.insert(0, OsString::from_vec(interpreter.to_vec()));
            continue;
        }
        let machine = head
            .get(18..20)
            .map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
        return match (head.starts_with(b"\x7fELF"), machine) {
            (true, Some(EM_X86_64)) => Ok(words),
            (true, Some(_)) => Err(Error::ProgramArchitecture {
                path: file,
                architecture: architecture(&head),
            }),
            _ => Err(Error::NotAProgram(file)),
        };
    }
    Err(Error::ScriptsOfScripts(program.to_owned()))
}

/// Name of the architecture in an ELF header.
fn architecture(head: &[u8]) -> String {
    let big_endian = head.get(5) == Some(&2);
    let bytes = [head[18], head[19]];
    let machine = if big_endian {
        u16::from_be_bytes(bytes)
    } else {
        u16::from_le_bytes(bytes)
    };
    match machine {
        3 => "32-bit x86".to_owned(),
        8 => "MIPS".to_owned(),
        20 | 21 => "PowerPC".to_owned(),
        22 => "S/390".to_owned(),
        40 => "32-bit ARM".to_owned(),
        183 => "AArch64".to_owned(),
        243 => "RISC-V".to_owned(),
        other => format!("ELF machine {other}"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn elf(machine: [u8; 2], byte_order: u8) -> Vec<u8> {
        let mut head = vec![0; 64];
        head[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, byte_order]);
        head[18..20].copy_from_slice(&machine);
        head
    }

    #[test]
    fn scripts_are_run_by_their_interpreters() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("sh"), elf([62, 0], 1)).unwrap();
        let outer = format!("#! {} -e  x \nbody", path("inner").display());
        fs::write(path("outer"), outer).unwrap();
        let inner = format!("#!{}\n", path("sh").display());
        fs::write(path("inner"), inner).unwrap();
        let found = words(&path("outer"), &["1".into()]).unwrap();
        let expected: [OsString; 5] = [
            path("sh").into(),
            path("inner").into(),
            "-e  x".into(),
            path("outer").into(),
            "1".into(),
        ];
        assert_eq!(found, expected);

        let itself = format!("#!{}\n", path("itself").display());
        fs::write(path("itself"), itself).unwrap();
        let error = words(&path("itself"), &[]).unwrap_err();
        assert!(matches!(error, Error::ScriptsOfScripts(_)), "{error}");
    }

    #[test]
    fn programs_for_other_machines_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        let refused = |head: Vec<u8>| {
            fs::write(&path, head).unwrap();
            let error = words(&path, &[]).unwrap_err().to_string();
            error.replace(&path.display().to_string(), "P")
        };
        let other = |name: &str| {
            format!(
                "P: a program for another architecture ({name}); programs for x86-64 can be traced"
            )
        };
        assert_eq!(refused(elf([183, 0], 1)), other("AArch64"));
        assert_eq!(refused(elf([0, 22], 2)), other("S/390"));
        assert_eq!(refused(elf([9, 1], 1)), other("ELF machine 265"));
        assert_eq!(
            refused(b"text".to_vec()),
            "P: neither a program nor a script"
        );
    }
}
