"""Parts of a web application that the server and the inspector share: sockets, static pages, a guard."""
