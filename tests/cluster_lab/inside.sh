#!/bin/bash
# inside.sh NAME FOLDER SHARED...   the first process of a host, in its new namespaces: mounts what is its own, then is its sshd
set -euo pipefail
name=$1 folder=$2
shift 2

hostname "$name"
mount --bind "$folder/hosts" /etc/hosts
mount --bind "$folder/ssh_config" /etc/ssh/ssh_config
mount -t sysfs sysfs /sys # what is in /sys/class/net belongs to a network
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/sshd
mount -t tmpfs -o mode=1777 tmpfs /dev/shm

# A /tmp of its own, in which the shared folders that lie there appear again.
mount -t tmpfs -o mode=1777 tmpfs /media
for path in "$folder" "$@"; do
    case $path in
        /tmp/*)
            mkdir -p "/media/${path#/tmp/}"
            mount --rbind "$path" "/media/${path#/tmp/}"
            ;;
    esac
done
mount --move /media /tmp

touch "$folder/$name.ready"
exec /usr/sbin/sshd -D -f "$folder/sshd_config" -E "$folder/$name.sshd.log"
