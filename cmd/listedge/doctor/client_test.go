package doctor

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestHowFarAClockIsAhead(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct{ date, sent, received, want time.Duration }{
		{0, 0, 0, 0},
		{0, 900 * time.Millisecond, 990 * time.Millisecond, 0}, // the second is cut off
		{0, time.Second, time.Second, 0},
		{0, 4 * time.Second, 5 * time.Second, -3 * time.Second},
		{5 * time.Second, time.Second, 2 * time.Second, 3 * time.Second},
		{0, -time.Second, 9 * time.Second, 0}, // it answered slowly
	} {
		if got := clockAhead(at.Add(c.date), at.Add(c.sent), at.Add(c.received)); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

func TestWhichAddressesOfANameAreNodes(t *testing.T) {
	for found, want := range map[string]string{
		"":                                  "",
		"10.0.0.1":                          "",
		"127.0.0.1 ::1":                     "", // one node by either
		"10.0.0.2 10.0.0.1":                 "10.0.0.1 10.0.0.2",
		"10.0.0.2 10.0.0.1 fd00::1 fd00::2": "10.0.0.1 10.0.0.2",
		"fd00::2 fd00::1":                   "fd00::1 fd00::2",
		"::ffff:10.0.0.1 10.0.0.1 10.0.0.2": "10.0.0.1 10.0.0.2",
	} {
		var addresses []netip.Addr
		for _, a := range strings.Fields(found) {
			addresses = append(addresses, netip.MustParseAddr(a))
		}
		var names []string
		for _, a := range nodeAddresses(addresses) {
			names = append(names, a.String())
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: %q, want %q", found, got, want)
		}
	}
}
