package doctor

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestWhichAddressesOfANameAreNodes(t *testing.T) {
	for found, want := range map[string]string{
		"10.0.0.1":                          "[10.0.0.1]",
		"127.0.0.1 ::1":                     "[127.0.0.1]", // one node by either
		"10.0.0.2 10.0.0.1":                 "[10.0.0.1 10.0.0.2]",
		"10.0.0.2 10.0.0.1 fd00::1 fd00::2": "[10.0.0.1 10.0.0.2]",
		"fd00::2 fd00::1":                   "[fd00::1 fd00::2]",
	} {
		t.Run(found, func(t *testing.T) {
			var addresses []netip.Addr
			for a := range strings.FieldsSeq(found) {
				addresses = append(addresses, netip.MustParseAddr(a))
			}
			if got := fmt.Sprint(oneFamily(addresses)); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}
