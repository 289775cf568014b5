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
	if c.refresh(); c.failed != nil {
		return nil, SettingError{fmt.Errorf("--tls-cert, --tls-key: %w", c.failed)}
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

// readInterval is the shortest time between two reads of the certificate's files.
const readInterval = 2 * time.Second

// secure returns a listener that speaks TLS with the certificate; without one, l itself.
func (c *certificate) secure(l net.Listener) net.Listener {
	if c == nil {
		return l
	}
	return tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: c.present})
}

func (c *certificate) present(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refresh()
	return c.current, nil
}

// expiry returns when the first certificate of the chain expires; zero = there is none. It reads
// the files, too: without clients nothing else would notice a renewal.
func (c *certificate) expiry() time.Time {
	if c == nil {
		return time.Time{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refresh()
	return c.expires
}

// refresh reads the certificate's files, if readInterval has passed. The caller holds mu.
func (c *certificate) refresh() {
	if time.Since(c.read) < readInterval {
		return
	}
	c.read = time.Now()
	pair, err := tls.LoadX509KeyPair(c.files.TLSCert, c.files.TLSKey)
	if c.failed = err; err != nil {
		return
	}
	c.current, c.expires = &pair, pair.Leaf.NotAfter
	for _, der := range pair.Certificate[1:] {
		if issuer, err := x509.ParseCertificate(der); err == nil && issuer.NotAfter.Before(c.expires) {
			c.expires = issuer.NotAfter
		}
	}
}

// expiryNotice is how long before its end a certificate should have been renewed.
const expiryNotice = 14 * 24 * time.Hour

// check fails if the certificate could not be renewed: its files cannot be read, or it ends
// soon.
func (c *certificate) check() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refresh()
	switch {
	case c.failed != nil:
		return fmt.Errorf("it cannot be read again: the old one stays in use: %w", c.failed)
	case time.Until(c.expires) < expiryNotice:
		return fmt.Errorf("it expires at %s", c.expires.UTC().Format(time.RFC3339))
	}
	return nil
}
