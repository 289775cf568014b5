package node

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"sync"
	"time"
)

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
	if _, _, err := c.state(); err != nil {
		return nil, SettingError{fmt.Errorf("--tls-cert, --tls-key: %w", err)}
	}
	return c, nil
}

// certificate is that of the public listener, whose files are read again and again. If that
// fails, the old one stays in use. Reason: a renewal writes two files, one after the other, and
// in between they do not match.
type certificate struct {
	files TLSFlags

	mu      sync.Mutex // guards the fields below
	current *tls.Certificate
	expires time.Time // the earliest end in the chain of current
	read    time.Time // when the files were last read
	failed  error     // why the last read failed; nil = it did not
}

const (
	// readInterval is the shortest time between two reads of the certificate's files.
	readInterval = 2 * time.Second
	// expiryNotice is how long before its end a certificate should have been renewed.
	expiryNotice = 14 * 24 * time.Hour
)

// state returns the certificate in use, the earliest end in its chain, and why its files could
// not be read last. It reads them first, if readInterval has passed: nothing else notices a renewal.
func (c *certificate) state() (current *tls.Certificate, expires time.Time, failed error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.read) < readInterval {
		return c.current, c.expires, c.failed
	}
	c.read = time.Now()
	var pair tls.Certificate
	if pair, c.failed = tls.LoadX509KeyPair(c.files.TLSCert, c.files.TLSKey); c.failed == nil {
		c.current, c.expires = &pair, pair.Leaf.NotAfter
		for _, der := range pair.Certificate[1:] {
			if issuer, err := x509.ParseCertificate(der); err == nil && issuer.NotAfter.Before(c.expires) {
				c.expires = issuer.NotAfter
			}
		}
	}
	return c.current, c.expires, c.failed
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
