package doctor

import "testing"

func TestWhichNodesAnAddressMeans(t *testing.T) {
	for address, want := range map[string]string{
		"10.0.0.1:9090": "http://10.0.0.1:9090", "[::1]:9090": "http://[::1]:9090", "http://127.0.0.1": "http://127.0.0.1",
		"https://nobody.invalid": "https://nobody.invalid", "https://nobody.invalid/one/": "https://nobody.invalid/one", // proxies, by their names
	} {
		t.Run(address, func(t *testing.T) {
			var u AdminURL
			if err := u.UnmarshalText([]byte(address)); err != nil {
				t.Fatal(err)
			}
			if found := u.nodes(t.Context()); len(found) != 1 || found[0].String() != want {
				t.Error(found)
			}
		})
	}
}
