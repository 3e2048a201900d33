//! A small `curl` for machines whose host has none: one URL, HTTP/1.1, TLS, redirects, and the options that install
//! scripts use. Unknown options are errors; options that only tune a transfer are ignored. The exit codes are those of
//! curl.

use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    sync::Arc,
    time::{Duration, Instant},
};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};

const SYSTEM_CAS: &[&str] = &["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];
const MAX_REDIRECTS: usize = 20;
const MAX_HEADER: u64 = 256 << 10;

#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Options {
    url: String,
    method: String,
    headers: Vec<String>,
    body: Option<Vec<u8>>,
    output: Option<String>,
    cacert: Option<String>,
    insecure: bool,
    fail: bool,
    silent: bool,
    show_error: bool,
    location: bool,
    write_out: String,
    connect_timeout: Option<Duration>,
    max_time: Option<Duration>,
    retry: u32,
}

/// A failure: curl's exit code and the message.
struct Failure(i32, String);

pub(super) fn main(args: &[String]) -> i32 {
    let options = match parse(args) {
        Ok(options) => options,
        Err(text) => {
            eprintln!("curl: {text}");
            return 2;
        }
    };
    let mut tries = 0;
    loop {
        match transfer(&options) {
            Ok(()) => return 0,
            // These failures, and server errors, may be temporary, as with --retry of curl.
            Err(Failure(code, _)) if tries < options.retry && [6, 7, 22, 28, 52, 56].contains(&code) => {
                tries += 1;
                std::thread::sleep(Duration::from_secs(u64::from(tries.min(10))));
            }
            Err(Failure(code, text)) => {
                if !options.silent || options.show_error {
                    eprintln!("curl: ({code}) {text}");
                }
                return code;
            }
        }
    }
}

fn parse(args: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut words = args.iter();
    while let Some(word) = words.next() {
        if let Some(long) = word.strip_prefix("--") {
            let (name, inline) =
                long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value.to_owned())));
            let mut value = || inline.clone().or_else(|| words.next().cloned());
            apply(&mut options, name, &mut value)?;
        } else if let Some(short) = word.strip_prefix('-').filter(|short| !short.is_empty()) {
            // Letters can be combined. The first one that takes a value uses the rest of the argument.
            for (at, letter) in short.char_indices() {
                let rest = short[at + letter.len_utf8()..].to_owned();
                let mut taken = false;
                let mut value = || {
                    taken = true;
                    Some(rest.clone()).filter(|rest| !rest.is_empty()).or_else(|| words.next().cloned())
                };
                apply(&mut options, long_name(letter)?, &mut value)?;
                if taken {
                    break;
                }
            }
        } else if options.url.is_empty() {
            options.url = word.clone();
        } else {
            return Err(format!("only one URL is supported; unexpected argument {word}"));
        }
    }
    if options.url.is_empty() { Err("no URL specified".to_owned()) } else { Ok(options) }
}

fn long_name(letter: char) -> Result<&'static str, String> {
    Ok(match letter {
        'f' => "fail",
        's' => "silent",
        'S' => "show-error",
        'L' => "location",
        'k' => "insecure",
        'o' => "output",
        'O' => "remote-name",
        'H' => "header",
        'X' => "request",
        'd' => "data",
        'A' => "user-agent",
        'm' => "max-time",
        'w' => "write-out",
        'K' => "config",
        'I' => "head",
        '#' => "progress-bar",
        other => return Err(format!("option -{other} is not supported by this curl")),
    })
}

fn apply(options: &mut Options, name: &str, value: &mut dyn FnMut() -> Option<String>) -> Result<(), String> {
    let mut text = || value().ok_or_else(|| format!("option --{name} requires parameter"));
    let seconds = |text: String| {
        let span = text.parse().ok().and_then(|number| Duration::try_from_secs_f64(number).ok());
        span.ok_or_else(|| format!("{text} is not a number of seconds"))
    };
    match name {
        "fail" | "fail-with-body" => options.fail = true,
        "silent" => options.silent = true,
        "show-error" => options.show_error = true,
        "location" => options.location = true,
        "insecure" => options.insecure = true,
        "head" => options.method = "HEAD".to_owned(),
        "output" => options.output = Some(text()?),
        "remote-name" => {
            let name = options.url.rsplit('/').next().unwrap_or_default().to_owned();
            options.output = Some(name);
        }
        "header" => options.headers.push(text()?),
        "user-agent" => options.headers.push(format!("User-Agent: {}", text()?)),
        "request" => options.method = text()?,
        "data" | "data-binary" | "data-raw" => options.body = Some(body(&text()?)?),
        "cacert" => options.cacert = Some(text()?),
        "url" => options.url = text()?,
        "write-out" => options.write_out = text()?,
        "connect-timeout" => options.connect_timeout = Some(seconds(text()?)?),
        "max-time" => options.max_time = Some(seconds(text()?)?),
        "retry" => options.retry = text()?.parse().map_err(|_| "--retry requires a number".to_owned())?,
        "config" => config(options, &text()?)?,
        "retry-delay" | "retry-max-time" | "proto" | "noproxy" => drop(text()?),
        "retry-connrefused" | "retry-all-errors" | "tlsv1.2" | "tlsv1.3" | "progress-bar"
        | "no-progress-meter" | "compressed" | "http1.1" => (),
        other => return Err(format!("option --{other} is not supported by this curl")),
    }
    Ok(())
}

fn body(text: &str) -> Result<Vec<u8>, String> {
    match text.strip_prefix('@') {
        None => Ok(text.as_bytes().to_vec()),
        Some("-") => {
            let mut all = Vec::new();
            io::stdin().read_to_end(&mut all).map(|_| all).map_err(|error| error.to_string())
        }
        Some(path) => fs::read(path).map_err(|error| format!("{path}: {error}")),
    }
}

/// Reads a file of `name = "value"` lines.
fn config(options: &mut Options, path: &str) -> Result<(), String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (name, rest) = line.split_once(['=', ':', ' ']).unwrap_or((line, ""));
        let rest = rest.trim().trim_start_matches(['=', ':']).trim();
        let value = match rest.strip_prefix('"').and_then(|inner| inner.strip_suffix('"')) {
            Some(inner) => inner.replace("\\\"", "\"").replace("\\\\", "\\"),
            None => rest.to_owned(),
        };
        apply(options, name.trim().trim_start_matches('-'), &mut || Some(value.clone()))?;
    }
    Ok(())
}

fn transfer(options: &Options) -> Result<(), Failure> {
    let deadline = options.max_time.map(|span| Instant::now() + span);
    let mut url = Url::parse(&options.url)?;
    for _ in 0..=MAX_REDIRECTS {
        let mut reader = BufReader::new(connect(options, &url, deadline)?);
        let method = match (options.method.as_str(), &options.body) {
            ("", None) => "GET",
            ("", Some(_)) => "POST",
            (given, _) => given,
        };
        let mut head =
            format!("{method} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", url.path, url.authority);
        let has = |name: &str| options.headers.iter().any(|header| header.to_lowercase().starts_with(name));
        if !has("user-agent:") {
            head.push_str("User-Agent: curl/8 (drover)\r\n");
        }
        if !has("accept:") {
            head.push_str("Accept: */*\r\n");
        }
        for header in &options.headers {
            head.push_str(&format!("{header}\r\n"));
        }
        if let Some(body) = &options.body {
            if !has("content-type:") {
                head.push_str("Content-Type: application/x-www-form-urlencoded\r\n");
            }
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let stream = reader.get_mut();
        stream.write_all(head.as_bytes()).map_err(broken)?;
        stream
            .write_all(options.body.as_deref().unwrap_or_default())
            .and_then(|()| stream.flush())
            .map_err(broken)?;
        let (status, headers) = read_head(&mut reader)?;
        let find = |name: &str| headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        if let (true, 301..=308, Some(target)) = (options.location, status, find("location")) {
            url = url.join(target)?;
            continue;
        }
        if options.fail && status >= 400 {
            return Err(Failure(22, format!("The requested URL returned error: {status}")));
        }
        let mut sink: Box<dyn Write> = match options.output.as_deref() {
            None | Some("-") => Box::new(io::stdout().lock()),
            Some(path) => {
                Box::new(fs::File::create(path).map_err(|error| Failure(23, format!("{path}: {error}")))?)
            }
        };
        if method != "HEAD" && status != 204 && status != 304 {
            let chunked =
                find("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked"));
            let length = find("content-length").and_then(|value| value.parse().ok());
            copy_body(&mut reader, &mut sink, chunked, length)?;
        }
        sink.flush().map_err(|error| Failure(23, error.to_string()))?;
        if !options.write_out.is_empty() {
            let text = options.write_out.replace("%{http_code}", &status.to_string());
            print!("{}", text.replace("%{response_code}", &status.to_string()).replace("\\n", "\n"));
        }
        return Ok(());
    }
    Err(Failure(47, format!("Maximum ({MAX_REDIRECTS}) redirects followed")))
}

fn read_head(reader: &mut impl BufRead) -> Result<(u16, Vec<(String, String)>), Failure> {
    let mut lines = Vec::new();
    let mut limited = reader.take(MAX_HEADER);
    loop {
        let mut line = String::new();
        match limited.read_line(&mut line).map_err(broken)? {
            0 => return Err(Failure(52, "Empty reply from server".to_owned())),
            _ if line.trim().is_empty() => break,
            _ => lines.push(line.trim().to_owned()),
        }
    }
    let status = lines.first().and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let status = status.ok_or_else(|| Failure(1, "the response is not HTTP/1".to_owned()))?;
    let headers = lines[1..]
        .iter()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_lowercase(), value.trim().to_owned()))
        .collect();
    Ok((status, headers))
}

fn copy_body(
    reader: &mut impl BufRead,
    sink: &mut dyn Write,
    chunked: bool,
    length: Option<u64>,
) -> Result<(), Failure> {
    let mut exactly = |reader: &mut dyn Read, length: u64| match io::copy(&mut reader.take(length), sink) {
        Ok(got) if got == length => Ok(()),
        Ok(got) => Err(Failure(18, format!("transfer closed with {} bytes remaining to read", length - got))),
        Err(error) => Err(broken(error)),
    };
    if chunked {
        loop {
            let mut line = String::new();
            reader.take(1024).read_line(&mut line).map_err(broken)?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let size =
                u64::from_str_radix(size, 16).map_err(|_| Failure(56, format!("invalid chunk {line:?}")))?;
            if size == 0 {
                return Ok(());
            }
            exactly(reader, size)?;
            reader.take(2).read_line(&mut String::new()).map_err(broken)?;
        }
    }
    match length {
        Some(length) => exactly(reader, length),
        None => io::copy(reader, sink).map(drop).map_err(broken),
    }
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

fn connect(options: &Options, url: &Url, deadline: Option<Instant>) -> Result<Box<dyn Stream>, Failure> {
    let left = |limit: Option<Duration>| {
        let rest = deadline.map(|end| end.saturating_duration_since(Instant::now()));
        [limit, rest].into_iter().flatten().min()
    };
    let addresses = (url.host.as_str(), url.port)
        .to_socket_addrs()
        .map_err(|_| Failure(6, format!("Could not resolve host: {}", url.host)))?;
    let mut last = Failure(6, format!("Could not resolve host: {}", url.host));
    for address in addresses {
        let limit =
            left(options.connect_timeout).unwrap_or(Duration::from_secs(300)).max(Duration::from_millis(1));
        let stream = match TcpStream::connect_timeout(&address, limit) {
            Ok(stream) => stream,
            Err(error) => {
                let code = if error.kind() == io::ErrorKind::TimedOut { 28 } else { 7 };
                last = Failure(code, format!("Failed to connect to {}: {error}", url.authority));
                continue;
            }
        };
        let limit = left(None).map(|span| span.max(Duration::from_millis(1)));
        stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit)).map_err(broken)?;
        return if url.tls { tls(options, url, stream) } else { Ok(Box::new(stream)) };
    }
    Err(last)
}

fn tls(options: &Options, url: &Url, mut stream: TcpStream) -> Result<Box<dyn Stream>, Failure> {
    let provider = Arc::new(ring::default_provider());
    let bad = |error: &dyn std::fmt::Display| Failure(35, error.to_string());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| bad(&error))?;
    let config = if options.insecure {
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_no_client_auth()
    } else {
        builder.with_root_certificates(roots(options.cacert.as_deref())?).with_no_client_auth()
    };
    let name = ServerName::try_from(url.host.clone()).map_err(|error| bad(&error))?;
    let mut connection = ClientConnection::new(Arc::new(config), name).map_err(|error| bad(&error))?;
    connection.complete_io(&mut stream).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => Failure(60, format!("SSL certificate problem: {error}")),
        _ => broken(error),
    })?;
    Ok(Box::new(StreamOwned::new(connection, stream)))
}

fn roots(cacert: Option<&str>) -> Result<RootCertStore, Failure> {
    let path = cacert.or_else(|| SYSTEM_CAS.iter().copied().find(|path| fs::metadata(path).is_ok()));
    let mut roots = RootCertStore::empty();
    if let Some(path) = path {
        let unusable = |error: &dyn std::fmt::Display| Failure(77, format!("{path}: {error}"));
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| unusable(&error))? {
            // CA bundles of systems contain certificates that no current library supports; these are skipped.
            let _ = roots.add(certificate.map_err(|error| unusable(&error))?);
        }
    }
    Ok(roots)
}

fn broken(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Failure(28, "Operation timed out".to_owned()),
        _ => Failure(56, error.to_string()),
    }
}

/// `--insecure`.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Url {
    tls: bool,
    authority: String,
    host: String,
    port: u16,
    path: String,
}

impl Url {
    fn parse(text: &str) -> Result<Url, Failure> {
        let malformed = || Failure(3, format!("URL rejected: {text}"));
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let tls = match scheme {
            "https" => true,
            "http" => false,
            _ => return Err(Failure(1, format!("Protocol {scheme:?} not supported"))),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let path = path.split('#').next().unwrap_or_default();
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let bracketed = authority.strip_prefix('[').and_then(|inner| inner.split_once(']'));
        let (host, port) = match bracketed {
            Some((host, port)) => (host, port.strip_prefix(':')),
            None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        let port = match port {
            Some(port) => port.parse().map_err(|_| malformed())?,
            None if tls => 443,
            None => 80,
        };
        if host.is_empty() || host.contains('@') {
            return Err(malformed());
        }
        Ok(Url { tls, authority: authority.to_owned(), host: host.to_owned(), port, path })
    }

    fn join(&self, target: &str) -> Result<Url, Failure> {
        if target.contains("://") {
            Url::parse(target)
        } else if target.starts_with('/') {
            Ok(Url { path: target.to_owned(), ..self.clone() })
        } else {
            let directory = self.path.rsplit_once('/').map_or("", |(directory, _)| directory);
            Ok(Url { path: format!("{directory}/{target}"), ..self.clone() })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn options(line: &str) -> Result<Options, String> {
        parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_of_install_scripts() {
        let seen =
            options("-fsSLo /tmp/x --connect-timeout 30 --max-time 60 --cacert /ca -H A:b https://h/p")
                .unwrap();
        assert!(seen.fail && seen.silent && seen.show_error && seen.location && !seen.insecure);
        assert_eq!((seen.output.as_deref(), seen.headers), (Some("/tmp/x"), vec!["A:b".to_owned()]));
        assert!(options("--insecure -sfL https://h").unwrap().insecure);
        assert!(options("--frob https://h").unwrap_err().contains("--frob"));
        assert!(options("-Z https://h").is_err() && options("-f").is_err() && options("-o").is_err());
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "# c\nheader = \"X-Token: a\\\"b\"\n").unwrap();
        let seen = options(&format!("--config {} http://h", file.path().display())).unwrap();
        assert_eq!(seen.headers, ["X-Token: a\"b"]);
    }

    #[test]
    fn urls_and_redirects() {
        let parse = |text| Url::parse(text).map_err(|failure| failure.1).unwrap();
        let url = parse("https://10.0.0.1:8443/a/b?c#d");
        assert_eq!(
            (url.host.as_str(), url.port, url.path.as_str(), url.tls),
            ("10.0.0.1", 8443, "/a/b?c", true)
        );
        assert_eq!((parse("http://h").path, parse("http://h?x").path), ("/".into(), "/?x".into()));
        assert_eq!((parse("http://[::1]:80/").host, parse("https://[::1]/").port), ("::1".into(), 443));
        let join = |target| url.join(target).map_err(|failure| failure.1).unwrap();
        assert_eq!(
            (join("/x").path, join("y").path, join("http://z/").host),
            ("/x".into(), "/a/y".into(), "z".into())
        );
        assert!(Url::parse("ftp://x").is_err() && Url::parse("http://").is_err());
    }

    /// Serves one connection per response.
    fn server(answers: Vec<&'static str>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut line = String::new();
                while reader.read_line(&mut line).unwrap() > 2 {
                    line.clear();
                }
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        format!("http://{address}/x")
    }

    fn fetch(answers: Vec<&'static str>, flags: &str) -> (i32, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let line = format!("{flags} -o {} {}", path.display(), server(answers));
        let code = main(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        (code, fs::read_to_string(path).unwrap_or_default())
    }

    #[test]
    fn certificates_are_checked() {
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(pair.signing_key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![pair.cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let connection = rustls::ServerConnection::new(Arc::new(config.clone())).unwrap();
                let mut stream = StreamOwned::new(connection, stream.unwrap());
                let mut request = [0u8; 4096];
                // A client that rejects the certificate disconnects here.
                if stream.read(&mut request).is_ok() {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
                    stream.conn.send_close_notify();
                    let _ = stream.flush();
                }
            }
        });
        let dir = tempfile::tempdir().unwrap();
        let ca = dir.path().join("ca.pem");
        fs::write(&ca, pair.cert.pem()).unwrap();
        let run = |flags: &str| {
            let line = format!("{flags} -so {}/out https://localhost:{port}/", dir.path().display());
            main(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
        };
        assert_eq!(run("-f"), 60);
        assert_eq!(run("--insecure"), 0);
        assert_eq!(run(&format!("--cacert {}", ca.display())), 0);
        assert_eq!(fs::read_to_string(dir.path().join("out")).unwrap(), "ok");
    }

    #[test]
    fn bodies_redirects_and_errors() {
        let plain = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(fetch(vec![plain], "-fsSL"), (0, "hello".into()));
        let chunked =
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x\r\nlo\r\n0\r\n\r\n";
        assert_eq!(fetch(vec![chunked], "-s"), (0, "hello".into()));
        let moved = "HTTP/1.1 302 Found\r\nLocation: /y\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(fetch(vec![moved, plain], "-fsL"), (0, "hello".into()));
        assert_eq!(fetch(vec!["HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno"], "-fs"), (22, String::new()));
        assert_eq!(fetch(vec!["HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno"], "-s"), (0, "no".into()));
        assert_eq!(fetch(vec!["HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"], "-s").0, 18);
        assert_eq!(fetch(vec![""], "-s").0, 52);
    }
}
