package node

import (
	"errors"
	"fmt"
	"net"
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
	if _, malformed := errors.AsType[*net.AddrError](err); malformed {
		err = SettingError{err}
	}
	return l, err
}
