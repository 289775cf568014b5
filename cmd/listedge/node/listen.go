package node

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"listedge/internal/remedy"
)

// SettingError is a setting that cannot work: wrong usage of the program.
type SettingError struct{ Err error }

func (e SettingError) Error() string { return e.Err.Error() }

func (e SettingError) Unwrap() error { return e.Err }

// ListenFlags say where a node listens.
type ListenFlags struct {
	Listen      string `help:"Address of the public listener." default:":8080" placeholder:"ADDRESS"`
	AdminListen string `help:"Address of health, metrics, profiles and the status page, without authentication." default:"127.0.0.1:9090" placeholder:"ADDRESS"`
}

// Validate refuses an empty address, which would listen everywhere.
func (f *ListenFlags) Validate() error {
	if f.Listen == "" || f.AdminListen == "" {
		return fmt.Errorf("--listen and --admin-listen must not be empty")
	}
	return nil
}

// Listen opens the listeners of a node, before anything else is started: a port
// in use is the most frequent mistake. An error ends the process.
func Listen(f ListenFlags) (public, private net.Listener, err error) {
	public, err = listen("--listen", f.Listen)
	if err == nil {
		private, err = listen("--admin-listen", f.AdminListen)
	}
	return public, private, err
}

// listen names the flag whose address fails. A malformed address is wrong usage; an
// address that is in use is not.
func listen(flag, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		err = fmt.Errorf("%s: %w", flag, err)
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		err = remedy.Add(err, "end what listens there, or give another address by "+flag)
	}
	if _, malformed := errors.AsType[*net.AddrError](err); malformed {
		err = SettingError{err}
	}
	return l, err
}

// TLSFlags are for TLS on the public listener.
type TLSFlags struct {
	TLSCert string `name:"tls-cert" help:"Certificates of the public listener, PEM; read again on change. Empty: plain HTTP." type:"path" placeholder:"FILE"`
	TLSKey  string `name:"tls-key" help:"Private key of --tls-cert, PEM." type:"path" placeholder:"FILE"`
}

// Validate refuses a certificate without a key, or a key without a certificate.
func (f *TLSFlags) Validate() error {
	if (f.TLSCert == "") != (f.TLSKey == "") {
		return fmt.Errorf("--tls-cert and --tls-key belong together")
	}
	return nil
}

// load reads the certificate; nil = there is none.
func (f *TLSFlags) load() (*certificate, error) {
	if f.TLSCert == "" {
		return nil, nil
	}
	c := &certificate{files: *f}
	c.load()
	if c.failed != nil {
		return nil, SettingError{fmt.Errorf("--tls-cert, --tls-key: %w", c.failed)}
	}
	return c, nil
}

// certificate is that of the public listener, whose files are read again and again. If that
// fails, the old one stays in use. Reason: a renewal writes two files, one after the other, and
// in between they do not match. Nobody waits for the files, which may be on a mount that hangs.
type certificate struct {
	files TLSFlags

	mu      sync.Mutex // guards the fields below
	current *tls.Certificate
	expires time.Time // the earliest end in the chain of current
	began   time.Time // when the last read of the files began
	reading bool      // it has not ended
	failed  error     // why the last read that ended failed; nil = it did not
}

const (
	// readInterval is the shortest time between two reads of the certificate's files.
	readInterval = 2 * time.Second
	// readHangs is how long a read may take before it is a failure.
	readHangs = 5 * time.Second
	// expiryNotice is how long before its end a certificate should have been renewed.
	expiryNotice = 14 * 24 * time.Hour
)

// state returns the certificate in use, the earliest end in its chain, and why its files could
// not be read last. If readInterval has passed, it begins to read them: nothing else notices a renewal.
func (c *certificate) state() (current *tls.Certificate, expires time.Time, failed error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch age := time.Since(c.began); {
	case c.reading && age >= readHangs:
		return c.current, c.expires, errors.New("reading its files hangs")
	case !c.reading && age >= readInterval:
		c.reading, c.began = true, time.Now()
		go c.load()
	}
	return c.current, c.expires, c.failed
}

// load reads the files.
func (c *certificate) load() {
	pair, err := tls.LoadX509KeyPair(c.files.TLSCert, c.files.TLSKey)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading, c.failed = false, err
	if err != nil {
		return
	}
	c.current, c.expires = &pair, pair.Leaf.NotAfter
	for _, der := range pair.Certificate[1:] {
		if issuer, err := x509.ParseCertificate(der); err == nil && issuer.NotAfter.Before(c.expires) {
			c.expires = issuer.NotAfter
		}
	}
}

// secure returns a listener that speaks TLS with the certificate; without one, l itself.
func (c *certificate) secure(l net.Listener) net.Listener {
	if c == nil {
		return l
	}
	return tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			current, _, _ := c.state()
			return current, nil
		}})
}

// expiry returns when the first certificate of the chain expires; zero = there is none.
func (c *certificate) expiry() (expires time.Time) {
	if c != nil {
		_, expires, _ = c.state()
	}
	return expires
}

// check fails if the certificate could not be renewed: its files cannot be read, or it ends
// soon.
func (c *certificate) check() error {
	switch _, expires, err := c.state(); {
	case err != nil:
		return fmt.Errorf("it cannot be read again: the old one stays in use: %w", err)
	case time.Until(expires) < expiryNotice:
		return fmt.Errorf("it expires at %s", expires.UTC().Format(time.RFC3339))
	}
	return nil
}
