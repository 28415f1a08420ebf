"""The MariaDB and MySQL store: `pillarbox.stores.mariadb.store`. Importing this package needs no driver."""
