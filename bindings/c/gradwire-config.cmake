# find_package(gradwire) makes the targets gradwire::shared and gradwire::static.
get_filename_component(_gradwire "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
foreach(_kind shared static)
  if(NOT TARGET gradwire::${_kind})
    string(TOUPPER ${_kind} _type)
    # Systems differ in where below the prefix libraries are.
    find_file(_gradwire_${_kind} libgradwire${CMAKE_${_type}_LIBRARY_SUFFIX} NO_DEFAULT_PATH
              PATHS "${_gradwire}/lib/${CMAKE_LIBRARY_ARCHITECTURE}" "${_gradwire}/lib64" "${_gradwire}/lib")
    add_library(gradwire::${_kind} ${_type} IMPORTED)
    set_target_properties(gradwire::${_kind} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${_gradwire}/include"
                                                        IMPORTED_LOCATION "${_gradwire_${_kind}}")
    unset(_gradwire_${_kind} CACHE)
  endif()
endforeach()
set_target_properties(gradwire::static PROPERTIES INTERFACE_LINK_LIBRARIES "m;pthread;dl")
unset(_gradwire)
